package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
)

// tool is a run of the program.
type tool struct {
	args    []string // the command line
	started bool     // a command has started, so the command line was valid
	ios     *iostreams.Streams
	conn    *connect.Connector
}

func newTool(ios *iostreams.Streams) *tool { return &tool{ios: ios, conn: connect.New(ios)} }

func (t *tool) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "orlopctl",
		Short: "Operate Orlop OS machines",
		Long:  "orlopctl operates Orlop OS machines: keys, configuration, health, logs, power, and local machines in QEMU.\n\n" + exit.Help,
		// The method Report prints the error, so the library must not print it too.
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return t.ios.CheckOutput() },
	}
	root.SetIn(t.ios.In)
	root.SetOut(t.ios.Out)
	root.SetErr(t.ios.Err)
	// The library pads each name to the length of the longest name. A single blank would not look
	// like a column.
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Padding }} {{", "Padding }}  {{"))
	f := root.PersistentFlags()
	t.conn.Flags.Register(f)
	f.StringVarP(&t.ios.Format, "output", "o", "table", "table, json or yaml")
	must(root.RegisterFlagCompletionFunc("context", completeContexts))
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))

	root.AddGroup(
		&cobra.Group{ID: "make", Title: "Make:"},
		&cobra.Group{ID: "look", Title: "Look:"},
		&cobra.Group{ID: "change", Title: "Change:"},
		&cobra.Group{ID: "tool", Title: "This tool:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	ios, conn := t.ios, t.conn
	add("make",
		genCommand(ios), pairCommand(ios, conn), validateCommand(ios),
		clusterCommand(ios, conn),
	)
	add("look",
		healthCommand(ios, conn), machinesCommand(ios, conn), getCommand(ios, conn), watchCommand(ios, conn),
		servicesCommand(ios, conn), logsCommand(ios, conn), dmesgCommand(ios, conn),
		eventsCommand(ios, conn), catCommand(ios, conn), lsCommand(ios, conn),
		auditCommand(ios, conn), captureCommand(ios, conn), profileCommand(ios, conn),
		versionCommand(ios, conn), sbomCommand(ios, conn), attestCommand(ios, conn), showConfigCommand(ios, conn), historyCommand(ios, conn),
		diffConfigCommand(ios, conn), supportCommand(ios, conn), dashboardCommand(ios, conn),
	)
	add("change",
		applyCommand(ios, conn), patchCommand(ios, conn), editCommand(ios, conn),
		confirmCommand(ios, conn), rollbackConfigCommand(ios, conn), serviceCommand(ios, conn),
		imageCommand(ios, conn), etcdCommand(ios, conn), trustCommand(ios, conn),
		nodesCommand(ios, conn), kubernetesCommand(ios, conn), kubeconfigCommand(ios, conn),
		upgradeCommand(ios, conn), rollbackCommand(ios, conn), rebootCommand(ios, conn),
		shutdownCommand(ios, conn), resetCommand(ios, conn), drainCommand(ios, conn),
		diskCommand(ios, conn), approvalCommand(ios),
	)
	add("tool",
		configCommand(ios, conn), verifyCommand(ios), docsCommand(ios), manCommand(ios),
	)
	root.SetHelpCommandGroupID("tool")
	root.SetCompletionCommandGroupID("tool")
	// Without this call, the library adds the command only while it parses the command line.
	root.InitDefaultCompletionCmd()
	t.noteStart(root)
	return root
}

// noteStart makes every command record that it has started, because an error before the start is a
// mistake in the command line. It also makes a command with --nodes run once per machine.
func (t *tool) noteStart(c *cobra.Command) {
	if c.HasParent() && c.HasSubCommands() && !c.Runnable() {
		c.RunE = group
	}
	if work := c.RunE; work != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			t.started = true
			if len(t.conn.Flags.Nodes) > 0 && !t.conn.Relayed() && fanoutOf(c) != api.Fanout_FANOUT_FLEET {
				return t.onNodes(c)
			}
			return work(c, args)
		}
	}
	for _, sub := range c.Commands() {
		t.noteStart(sub)
	}
}

// group is the handler of a command with subcommands. The library would print the help for an
// unknown subcommand and return success, and a script would continue by mistake. group returns an
// error instead.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
	c.SuggestionsMinimumDistance = 2 // the library's own value for unknown commands of the root
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %q?", err, near[0])
	}
	return &exit.Error{Code: exit.Usage, Err: err, Hint: "see `" + c.CommandPath() + " --help`"}
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/orlop-os/orlop/pkg/client"
)

// tool is one run of the program.
type tool struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	args           []string // the command line
	started        bool     // a command has begun: the command line was understood

	// Of a run that is for one of several machines (nodes.go): which, and the way to it.
	node string
	way  *way

	// of several endpoints a command keeps to one: what it waits for has begun there
	stay *client.ConnPool

	flags struct {
		context, serverName        string
		endpoints, nodes           []string
		cert, key, ca, fingerprint string
		output                     string
		timeout                    time.Duration
	}
}

func (t *tool) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "orlopctl",
		Short: "Operate Orlop OS machines",
		Long:  "orlopctl operates Orlop OS machines: keys, configuration, health, logs, power, and local machines in QEMU.\n\n" + exitHelp,
		// Errors are printed once, by report.
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return t.checkOutput() },
	}
	root.SetIn(t.stdin)
	root.SetOut(t.stdout)
	root.SetErr(t.stderr)
	f := root.PersistentFlags()
	f.StringVar(&t.flags.context, "context", "", "use this context instead of the current one")
	f.StringSliceVarP(&t.flags.endpoints, "endpoint", "e", nil, "address of the machine, host[:port]; of several (a,b,c) the first that lets you in is called")
	f.StringSliceVarP(&t.flags.nodes, "nodes", "n", nil, "make the call to each of these machines of the cluster (IP addresses: a,b,c), through the machine of the endpoint")
	f.StringVar(&t.flags.serverName, "server-name", "", "name that the machine's certificate must hold (default: the host of the endpoint)")
	f.StringVar(&t.flags.cert, "cert", "", "file with your client certificate")
	f.StringVar(&t.flags.key, "key", "", "file with its key")
	f.StringVar(&t.flags.ca, "ca", "", "file with the cluster's machine CA, or with the cluster's secrets, of which only that is taken")
	f.StringVar(&t.flags.fingerprint, "fingerprint", "", "verify the machine by the fingerprint on its console (sha256:…)")
	f.StringVarP(&t.flags.output, "output", "o", "table", "table, json or yaml")
	f.DurationVar(&t.flags.timeout, "timeout", 0, "how long to wait (default: 30s; more for commands that take longer)")
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
	add("make", t.genCommand(), t.pairCommand(), t.validateCommand(), t.clusterCommand())
	add("look", t.healthCommand(), t.getCommand(), t.watchCommand(), t.servicesCommand(), t.logsCommand(), t.dmesgCommand(), t.eventsCommand(),
		t.catCommand(), t.lsCommand(), t.auditCommand(), t.captureCommand(), t.profileCommand(), t.versionCommand(), t.showConfigCommand(), t.historyCommand(), t.diffConfigCommand(),
		t.supportCommand(), t.dashboardCommand())
	add("change", t.applyCommand(), t.patchCommand(), t.editCommand(), t.confirmCommand(), t.rollbackConfigCommand(), t.serviceCommand(),
		t.imageCommand(), t.etcdCommand(), t.trustCommand(), t.nodesCommand(), t.kubernetesCommand(), t.kubeconfigCommand(), t.upgradeCommand(), t.rollbackCommand(), t.rebootCommand(), t.shutdownCommand(), t.resetCommand())
	add("tool", t.configCommand(), t.docsCommand(), t.manCommand())
	root.SetHelpCommandGroupID("tool")
	root.SetCompletionCommandGroupID("tool")
	root.InitDefaultCompletionCmd() // the library would add it only when the command line is read
	t.noteStart(root)
	return root
}

// noteStart makes every command note that it has begun: what fails before is a mistake in the
// command line. One that is for several machines runs anew for each.
func (t *tool) noteStart(c *cobra.Command) {
	if c.HasParent() && c.HasSubCommands() && !c.Runnable() {
		c.RunE = group
	}
	if work := c.RunE; work != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			t.started = true
			if len(t.flags.nodes) > 0 && t.way == nil && manners[nameOf(c)] != together {
				return t.onNodes(c)
			}
			return work(c, args)
		}
	}
	for _, sub := range c.Commands() {
		t.noteStart(sub)
	}
}

// group is a command that only has others. The library would show its help for a word that is none
// of them, and call that a success: what a script does next would be done to something else.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
	c.SuggestionsMinimumDistance = 2 // as the library has it for the first word
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %q?", err, near[0])
	}
	return &exitError{code: exitUsage, err: err, hint: "see `" + c.CommandPath() + " --help`"}
}

// timeout is the value of --timeout, or a command's own default.
func (t *tool) timeout(usual time.Duration) time.Duration {
	if t.flags.timeout > 0 {
		return t.flags.timeout
	}
	return usual
}

// usualTimeout bounds calls that answer at once.
const usualTimeout = 30 * time.Second

// interruptible ends with Ctrl-C.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

// call connects, makes a call that answers at once, and disconnects.
func (t *tool) call(do func(context.Context, *client.Client) error) error { return t.callFor(0, do) }

// callFor is call where the machine's work alone takes so long.
func (t *tool) callFor(work time.Duration, do func(context.Context, *client.Client) error) error {
	ctx, stop := interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, t.timeout(work+usualTimeout))
	defer cancel()
	return t.connected(ctx, ctx, do)
}

// stream connects within the usual time and makes a call that may last; it ends with the call, with
// Ctrl-C, or after --timeout when that was given.
func (t *tool) stream(do func(context.Context, *client.Client) error) error {
	ctx, stop := interruptible()
	defer stop()
	if t.flags.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.flags.timeout)
		defer cancel()
	}
	dialing, cancel := context.WithTimeout(ctx, usualTimeout)
	defer cancel()
	err := t.connected(dialing, ctx, do)
	if ctx.Err() == context.Canceled {
		return nil // Ctrl-C is how following ends
	}
	return err
}

func (t *tool) connected(dialing, calling context.Context, do func(context.Context, *client.Client) error) error {
	name, chosen, endpoint, err := t.called()
	if err != nil {
		return err
	}
	return connectedTo(dialing, endpoint, func(c *client.Client) error {
		t.keepFresh(dialing, c, name, chosen)
		return do(calling, c)
	})
}

func connectedTo(dialing context.Context, e client.Endpoint, do func(*client.Client) error) error {
	c, err := client.Dial(dialing, e)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // nothing is sent any more
	return do(c)
}

// terminal tells whether a person looks at the output as it comes, and how wide it is.
func (t *tool) terminal() (width int, ok bool) {
	file, ok := t.stdout.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width < 20 {
		width = 80
	}
	return width, true
}

// println writes a line to the standard output. A reader that has gone away (a closed pipe) ends
// the process by SIGPIPE, as of any Unix tool; other failures have nobody left to be told.
func (t *tool) println(line string) { _, _ = fmt.Fprintln(t.stdout, line) }

func (t *tool) printf(format string, args ...any) { _, _ = fmt.Fprintf(t.stdout, format, args...) }

// errorln writes a line for a person that must not mix with the output.
func (t *tool) errorln(line string) { _, _ = fmt.Fprintln(t.stderr, line) }

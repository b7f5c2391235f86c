package main

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/client"
)

// tool is one run of the program.
type tool struct {
	args    []string // the command line
	started bool     // a command has started, so the command line was valid
	ios     *iostreams.Streams
	conn    *connector
}

func newTool(ios *iostreams.Streams) *tool { return &tool{ios: ios, conn: &connector{ios: ios}} }

// connector connects to the machines that the flags and the contexts select.
type connector struct {
	ios   *iostreams.Streams
	flags connectFlags
	// relay is the connection to the relay, in a run for one machine of --nodes.
	relay *relayConn
	node  string // the machine behind the relay
	// stay is, with several endpoints, the endpoint that the command continues to use, because it
	// started the operation there.
	stay *client.ConnPool
}

// connectFlags are the flags that select a machine and the credentials.
type connectFlags struct {
	context, serverName        string
	endpoints, nodes           []string
	cert, key, ca, fingerprint string
	timeout                    time.Duration
}

func (t *tool) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "orlopctl",
		Short: "Operate Orlop OS machines",
		Long:  "orlopctl operates Orlop OS machines: keys, configuration, health, logs, power, and local machines in QEMU.\n\n" + exit.Help,
		// report prints the error once.
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return t.ios.CheckOutput() },
	}
	root.SetIn(t.ios.In)
	root.SetOut(t.ios.Out)
	root.SetErr(t.ios.Err)
	f := root.PersistentFlags()
	f.StringVar(&t.conn.flags.context, "context", "", "use this context instead of the current context")
	f.StringSliceVarP(&t.conn.flags.endpoints, "endpoint", "e", nil, "address of the machine, host[:port]; with several (a,b,c) the first that admits you is used")
	f.StringSliceVarP(&t.conn.flags.nodes, "nodes", "n", nil, "make the call to each of these machines of the cluster (IP addresses: a,b,c), through the machine of the endpoint")
	f.StringVar(&t.conn.flags.serverName, "server-name", "", "name that the machine's certificate must hold (default: the host of the endpoint)")
	f.StringVar(&t.conn.flags.cert, "cert", "", "file with your client certificate")
	f.StringVar(&t.conn.flags.key, "key", "", "file with its key")
	f.StringVar(&t.conn.flags.ca, "ca", "", "file with the cluster's machine CA, or with the cluster's secrets, which contain it")
	f.StringVar(&t.conn.flags.fingerprint, "fingerprint", "", "verify the machine by the fingerprint on its console (sha256:…)")
	f.StringVarP(&t.ios.Format, "output", "o", "table", "table, json or yaml")
	f.DurationVar(&t.conn.flags.timeout, "timeout", 0, "time limit (default: 30s; more for slow commands)")
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
	add("make", genCommand(t.ios), pairCommand(t.ios, t.conn), validateCommand(t.ios), clusterCommand(t.ios, t.conn))
	add("look", healthCommand(t.ios, t.conn), getCommand(t.ios, t.conn), watchCommand(t.ios, t.conn), servicesCommand(t.ios, t.conn), logsCommand(t.ios, t.conn), dmesgCommand(t.ios, t.conn), eventsCommand(t.ios, t.conn),
		catCommand(t.ios, t.conn), lsCommand(t.ios, t.conn), auditCommand(t.ios, t.conn), captureCommand(t.ios, t.conn), profileCommand(t.ios, t.conn), versionCommand(t.ios, t.conn), showConfigCommand(t.ios, t.conn), historyCommand(t.ios, t.conn), diffConfigCommand(t.ios, t.conn),
		supportCommand(t.ios, t.conn), dashboardCommand(t.ios, t.conn))
	add("change", applyCommand(t.ios, t.conn), patchCommand(t.ios, t.conn), editCommand(t.ios, t.conn), confirmCommand(t.ios, t.conn), rollbackConfigCommand(t.ios, t.conn), serviceCommand(t.ios, t.conn),
		imageCommand(t.ios, t.conn), etcdCommand(t.ios, t.conn), trustCommand(t.ios, t.conn), nodesCommand(t.ios, t.conn), kubernetesCommand(t.ios, t.conn), kubeconfigCommand(t.ios, t.conn), upgradeCommand(t.ios, t.conn), rollbackCommand(t.ios, t.conn), rebootCommand(t.ios, t.conn), shutdownCommand(t.ios, t.conn), resetCommand(t.ios, t.conn))
	add("tool", configCommand(t.ios, t.conn), docsCommand(t.ios), manCommand(t.ios))
	root.SetHelpCommandGroupID("tool")
	root.SetCompletionCommandGroupID("tool")
	// otherwise the library adds it only while it parses the command line
	root.InitDefaultCompletionCmd()
	t.noteStart(root)
	return root
}

// noteStart makes every command record that it has started. An error before that is a mistake in
// the command line. With --nodes, the command runs once per machine.
func (t *tool) noteStart(c *cobra.Command) {
	if c.HasParent() && c.HasSubCommands() && !c.Runnable() {
		c.RunE = group
	}
	if work := c.RunE; work != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			t.started = true
			if len(t.conn.flags.nodes) > 0 && t.conn.relay == nil && fanoutModes[nameOf(c)] != wholeFleet {
				return t.onNodes(c)
			}
			return work(c, args)
		}
	}
	for _, sub := range c.Commands() {
		t.noteStart(sub)
	}
}

// group is the handler of a command with subcommands. For an unknown subcommand, the library would
// print the help and return success, and a script would continue by mistake.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
	c.SuggestionsMinimumDistance = 2 // the value that the library uses for the first word
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %q?", err, near[0])
	}
	return &exit.Error{Code: exit.Usage, Err: err, Hint: "see `" + c.CommandPath() + " --help`"}
}

// timeout returns the value of --timeout, or the default of the command.
func (conn *connector) timeout(usual time.Duration) time.Duration {
	if conn.flags.timeout > 0 {
		return conn.flags.timeout
	}
	return usual
}

// usualTimeout bounds calls that return immediately.
const usualTimeout = 30 * time.Second

// interruptible returns a context that ends with Ctrl-C.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

// call connects, makes a call that returns immediately, and disconnects.
func (conn *connector) call(do func(context.Context, *client.Client) error) error {
	return conn.callFor(0, do)
}

// callFor is call for an operation that takes up to work on the machine.
func (conn *connector) callFor(work time.Duration, do func(context.Context, *client.Client) error) error {
	ctx, stop := interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, conn.timeout(work+usualTimeout))
	defer cancel()
	return conn.connected(ctx, ctx, do)
}

// stream connects within the usual time and makes a call of unlimited duration. It ends with the
// call, with Ctrl-C, or after --timeout if that is set.
func (conn *connector) stream(do func(context.Context, *client.Client) error) error {
	ctx, stop := interruptible()
	defer stop()
	if conn.flags.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, conn.flags.timeout)
		defer cancel()
	}
	dialing, cancel := context.WithTimeout(ctx, usualTimeout)
	defer cancel()
	err := conn.connected(dialing, ctx, do)
	if ctx.Err() == context.Canceled {
		return nil // Ctrl-C is the normal end of a stream
	}
	return err
}

func (conn *connector) connected(dialing, calling context.Context, do func(context.Context, *client.Client) error) error {
	name, chosen, endpoint, err := conn.called()
	if err != nil {
		return err
	}
	return connectedTo(dialing, endpoint, func(c *client.Client) error {
		conn.keepFresh(dialing, c, name, chosen)
		return do(calling, c)
	})
}

func connectedTo(dialing context.Context, e client.Endpoint, do func(*client.Client) error) error {
	c, err := client.Dial(dialing, e)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // no more data is sent
	return do(c)
}

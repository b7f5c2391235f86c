package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/dashboard"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	latest "github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
)

const (
	// pollInterval is the polling interval of the version, which has no watch. It is also the delay
	// before the dashboard opens a stream again after the machine has ended it. For example, the
	// machine ends the stream of health when the cluster is healthy.
	pollInterval = 5 * time.Second
	// The interval between two attempts to connect to an unreachable machine doubles from the first
	// value to the second.
	minBackoff, maxBackoff = time.Second, 30 * time.Second
	// renewInterval is the interval between checks of the caller's certificate, because connections
	// end when it expires. The shortest validity that a machine issues by default is a day.
	renewInterval = 10 * time.Minute
	// logTail is the number of past lines with which the view of a log starts.
	logTail = 500
)

func dashboardCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var contexts []string
	c := &cobra.Command{
		Use:   "dashboard",
		Short: "Watch machines in one terminal: health, services, logs, events, upgrades",
		Long: "Watch machines in one terminal: health, services, logs, events, upgrades. The dashboard changes nothing, and\n" +
			"the role reader suffices. It reconnects automatically to a machine that becomes unreachable. The last line of the\n" +
			"screen lists the most important keys, and the key ? shows all keys. If NO_COLOR is set, the dashboard uses no colors.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			in, is := ios.In.(*os.File)
			if _, out := ios.Terminal(); !out || !is || !term.IsTerminal(int(in.Fd())) || !ios.Human() {
				return &exit.Error{
					Code: exit.Usage, Err: errors.New("dashboard: cannot draw: it needs a terminal for its input and output, and -o table"),
					Hint: "`orlopctl health`, `orlopctl watch TOPIC` and `orlopctl events --follow` write lines, JSON or YAML",
				}
			}
			feeds, err := newFeeds(ios, conn, contexts)
			if err != nil {
				return err
			}
			ctx, stop := connect.Interruptible()
			defer stop()
			return showDashboard(ctx, feeds, os.Getenv("NO_COLOR") == "", tea.WithInput(in), tea.WithOutput(ios.Out))
		},
	}
	c.Flags().StringSliceVar(&contexts, "contexts", nil, "watch the machines of these contexts, \"a,b,c\" (default: the current context)")
	return c
}

// feed collects the state of a machine for the dashboard.
type feed struct {
	index  int
	known  dashboard.Machine
	conn   *connect.Connector          // with the flags that select the machine
	files  *sync.Mutex                 // shared by all feeds; locks the file of contexts
	wanted *latest.Cell[dashboard.Log] // the log that the screen shows (State.Wants)
	send   func(dashboard.Message)
}

// newFeeds returns a feed for each of the contexts. Without contexts, it returns the feed of the
// machine that the flags select.
func newFeeds(ios *iostreams.Streams, conn *connect.Connector, contexts []string) ([]*feed, error) {
	if len(contexts) == 0 {
		contexts = []string{conn.Flags.Context}
	} else if conn.Flags.Context != "" || len(conn.Flags.Endpoints) > 0 || conn.Flags.Fingerprint != "" || conn.Flags.ServerName != "" {
		return nil, exit.Usagef("--contexts: cannot use together with flags that name one machine")
	}
	files := new(sync.Mutex)
	var feeds []*feed
	for i, name := range contexts {
		// The screen is not drawn yet, so the user still sees a problem with the certificate.
		shown, _, endpoint, err := conn.ForContext(name, ios).Called()
		if err != nil {
			return nil, err
		}
		known := dashboard.Machine{Context: shown, Address: endpoint.Address}
		if len(conn.Flags.Endpoints) > 0 {
			known.Context = ""
		}
		// Output to stderr would damage the screen, so the feed gets streams without output.
		feeds = append(feeds, &feed{index: i, known: known, conn: conn.ForContext(name, ios.Silent()), files: files})
	}
	return feeds, nil
}

// called is Connector.Called. Several feeds can call it concurrently.
func (f *feed) called() (string, contexts.Context, client.Endpoint, error) {
	f.files.Lock()
	defer f.files.Unlock()
	return f.conn.Called()
}

// showDashboard runs the dashboard until the user quits or the context ends.
func showDashboard(ctx context.Context, feeds []*feed, colour bool, options ...tea.ProgramOption) error {
	var machines []dashboard.Machine
	for _, f := range feeds {
		machines = append(machines, f.known)
	}
	wanted := latest.New(dashboard.Log{})
	start := terminalScreen{state: dashboard.New(machines, colour).At(time.Now()), wanted: wanted}
	program := tea.NewProgram(start, append(options, tea.WithContext(ctx), tea.WithoutSignalHandler())...)
	following, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, f := range feeds {
		f.wanted, f.send = wanted, func(m dashboard.Message) { program.Send(m) }
		running.Go(func() { f.run(following) })
	}
	_, err := program.Run()
	stop()
	running.Wait()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("dashboard: cannot draw: %w", err)
	}
	return nil
}

// terminalScreen adapts the state of the dashboard to bubbletea.
type terminalScreen struct {
	state  dashboard.State
	wanted *latest.Cell[dashboard.Log] // set to State.Wants
}

// tick is a message with the current time, once a second.
type tick time.Time

func (terminalScreen) Init() tea.Cmd { return nextTick() }

func nextTick() tea.Cmd { return tea.Tick(time.Second, func(at time.Time) tea.Msg { return tick(at) }) }

func (s terminalScreen) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	before := s.state.Wants()
	var next tea.Cmd
	switch m := message.(type) {
	case dashboard.Message:
		s.state = s.state.Apply(m)
	case tea.KeyPressMsg:
		s.state = s.state.Key(m.String())
	case tea.WindowSizeMsg:
		s.state = s.state.Sized(m.Width, m.Height)
	case tick:
		s.state, next = s.state.At(time.Time(m)), nextTick()
	}
	if now := s.state.Wants(); now != before {
		s.wanted.Set(now)
	}
	if s.state.Quits() {
		return s, tea.Quit
	}
	return s, next
}

func (s terminalScreen) View() tea.View {
	v := tea.NewView(s.state.Draw())
	v.AltScreen = true
	return v
}

func (f *feed) report(body any) { f.send(dashboard.Message{Machine: f.index, Body: body}) }

// run connects to the machine and reports its messages, until the context ends. After a lost
// connection it connects again.
func (f *feed) run(ctx context.Context) {
	for failures := 1; ; failures++ {
		err := f.connect(ctx, func() { failures = 1 })
		if ctx.Err() != nil {
			return
		}
		reason := exit.Message(err)
		if _, why, is := strings.Cut(reason, ": cannot connect: "); is {
			reason = why // the row already shows the machine
		}
		pause := backoff.Backoff{Min: minBackoff, Max: maxBackoff}.Delay(failures)
		f.report(dashboard.Disconnected{Reason: reason, Next: time.Now().Add(pause)})
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// connect makes a single attempt to connect. After success, it calls the function connected, and
// then reports messages until the connection is lost. It returns the reason of the failure or the
// loss.
func (f *feed) connect(ctx context.Context, connected func()) error {
	// Each attempt reads the context again, because another command may have renewed the
	// certificate.
	_, _, endpoint, err := f.called()
	if err != nil {
		return err
	}
	return connect.Attempt(ctx, endpoint, func(_ context.Context, c *client.Client) error {
		connected()
		f.report(dashboard.Connected{})
		return f.follow(ctx, c)
	})
}

// follow reports the messages of a connection until the connection is lost, and returns the reason.
func (f *feed) follow(ctx context.Context, c *client.Client) error {
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	var running sync.WaitGroup
	source := func(name string, ask func(context.Context) error) {
		running.Go(func() {
			if err := f.again(ctx, name, ask); err != nil {
				lost(err)
			}
		})
	}
	source(dashboard.Health, func(ctx context.Context) error {
		stream, err := c.Cluster.Health(ctx, &api.HealthRequest{})
		return pass(f, dashboard.Health, stream, err)
	})
	source(dashboard.Events, func(ctx context.Context) error {
		stream, err := c.Machine.Events(ctx, &api.EventsRequest{Follow: true})
		return pass(f, dashboard.Events, stream, err)
	})
	source(dashboard.Upgrade, func(ctx context.Context) error {
		stream, err := c.Upgrade.Watch(ctx, &api.WatchUpgradeRequest{})
		return pass(f, dashboard.Upgrade, stream, err)
	})
	for _, topic := range dashboard.Topics {
		source(topic, func(ctx context.Context) error {
			stream, err := c.Machine.Watch(ctx, &api.GetRequest{Topic: topic})
			return pass(f, topic, stream, err)
		})
	}
	running.Go(func() { lost(f.heartbeat(ctx, c)) })
	running.Go(func() { lost(f.log(ctx, c)) })
	running.Go(func() { f.keepFresh(ctx, c) })
	running.Wait()
	return context.Cause(ctx)
}

// pass reports the messages of a stream until the stream ends. err is the error of the call that
// opened the stream; if it is not nil, pass only returns it.
func pass[T any](f *feed, source string, stream interface{ Recv() (T, error) }, err error) error {
	if err != nil {
		return err
	}
	f.report(dashboard.Started{Source: source})
	return connect.Each(stream.Recv, func(v T) error {
		f.report(v)
		return nil
	})
}

// The method again calls the function ask, which sends a request and reads the answers. When the
// machine has ended the stream, the method waits for pollInterval and repeats the call. It returns
// an error if the connection is lost. If the machine rejects the request, the method reports the
// rejection and returns nil, because the machine would also reject a repeated request and record
// each rejection in its audit log.
func (f *feed) again(ctx context.Context, source string, ask func(context.Context) error) error {
	for {
		err := ask(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil || exit.IsTemporary(err):
			return err
		default:
			f.report(dashboard.Failed{Source: source, Reason: exit.Message(err)})
			return nil
		}
		if backoff.Sleep(ctx, pollInterval) != nil {
			return ctx.Err()
		}
	}
}

// heartbeat polls the version until the machine does not answer. Every role may read the version.
func (f *feed) heartbeat(ctx context.Context, c *client.Client) error {
	for {
		asking, cancel := context.WithTimeout(ctx, connect.DialTimeout)
		v, err := c.Machine.Version(asking, &api.VersionRequest{})
		cancel()
		if err != nil {
			return err
		}
		f.report(v)
		if backoff.Sleep(ctx, pollInterval) != nil {
			return ctx.Err()
		}
	}
}

// log reports the lines of the log that the user has selected, while the log belongs to this
// machine. It returns an error when the connection is lost.
func (f *feed) log(ctx context.Context, c *client.Client) error {
	for watch := f.wanted.Watch(); ; {
		want, _, err := watch.Next(ctx)
		if err != nil {
			return err
		}
		if want.Machine != f.index || want.Service == "" {
			continue
		}
		changed := watch.Changed()
		one, stop := context.WithCancel(ctx)
		go func() {
			defer stop()
			select {
			case <-changed:
			case <-one.Done():
			}
		}()
		err = f.again(one, dashboard.Logs, func(ctx context.Context) error {
			stream, err := c.Log.Service(ctx, &api.ServiceLogRequest{Service: want.Service, Follow: true, Tail: logTail})
			return pass(f, dashboard.Logs, named{want.Service, stream}, err)
		})
		another := one.Err() != nil && ctx.Err() == nil
		stop()
		if err != nil && !another {
			return err
		}
	}
}

// named is a stream of log lines. It adds the name of the service to each line.
type named struct {
	service string
	stream  interface{ Recv() (*api.LogLine, error) }
}

func (n named) Recv() (dashboard.LogLine, error) {
	line, err := n.stream.Recv()
	return dashboard.LogLine{Service: n.service, Line: line}, err
}

// keepFresh checks at each renewInterval whether the caller's certificate is due for renewal, and
// renews it. Other commands check only once, when they connect; the dashboard can run longer than
// the certificate is valid.
func (f *feed) keepFresh(ctx context.Context, c *client.Client) {
	for {
		f.renew(ctx, c)
		if backoff.Sleep(ctx, renewInterval) != nil {
			return
		}
	}
}

func (f *feed) renew(ctx context.Context, c *client.Client) {
	f.files.Lock()
	defer f.files.Unlock()
	ctx, cancel := context.WithTimeout(ctx, connect.DialTimeout)
	defer cancel()
	if name, chosen, err := f.conn.Chosen(); err == nil {
		f.conn.KeepFresh(ctx, c, name, chosen)
	}
}

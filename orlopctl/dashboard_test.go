package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/dashboard"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/machinetest"
	latest "github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// dashboardLimit bounds each wait of a test.
const dashboardLimit = 30 * time.Second

// startDashboardMachine starts a fake machine with this name. It adds a context for the machine,
// with a certificate of the role reader. It returns the machine and a connector, which uses this
// context.
func startDashboardMachine(t *testing.T, name string) (*machinetest.Machine, *connect.Connector) {
	t.Helper()
	t.Setenv("ORLOP_CONFIG", filepath.Join(t.TempDir(), "contexts"))
	operator, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	fake, err := machinetest.Start(operator.CertPEM())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fake.Stop(); err != nil {
			t.Logf("the fake machine: %v", err)
		}
	})
	if err := fake.Configure(&config.Config{Machine: config.Machine{Metadata: config.Metadata{Name: name}}}); err != nil {
		t.Fatal(err)
	}
	leaf, err := operator.Issue(pki.Spec{CN: "dora", O: []string{pki.RolePrefix + "reader"}, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	err = contexts.Change(func(f *contexts.File) error {
		f.Contexts["one"] = contexts.Context{Endpoint: fake.Address, Fingerprint: fake.Fingerprint, Cert: string(leaf.CertPEM()), Key: string(leaf.KeyPEM())}
		f.Current = "one"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fake, connect.New(&iostreams.Streams{Err: io.Discard})
}

// picture is a terminal that stores its output. The cell grew has the whole output so far.
type picture struct {
	mu   sync.Mutex
	text bytes.Buffer
	grew *latest.Cell[string]
}

func (p *picture) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text.Write(b)
	p.grew.Set(p.text.String())
	return len(b), nil
}

// TestDashboard runs the dashboard in a simulated terminal: the machine's name appears, keys change
// the screen, and q ends the program.
func TestDashboard(t *testing.T) {
	_, conn := startDashboardMachine(t, "zebra")
	feeds, err := newFeeds(&iostreams.Streams{}, conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), dashboardLimit)
	defer cancel()
	keys, hands := io.Pipe()
	defer hands.Close()
	seen := &picture{grew: latest.New("")}
	ended := make(chan error, 1)
	go func() {
		ended <- showDashboard(ctx, feeds, false, tea.WithInput(keys), tea.WithOutput(seen), tea.WithWindowSize(80, 24), tea.WithEnvironment(nil))
	}()
	for _, step := range []struct{ see, press string }{{"zebra", "2"}, {"containerd", "\r"}, {"three", "4"}, {"format STATE", "q"}} {
		shown, err := latest.Wait(ctx, seen.grew, func(text string) bool { return strings.Contains(text, step.see) })
		if err != nil {
			t.Fatalf("the dashboard does not show %s: %q", step.see, shown)
		}
		if _, err := hands.Write([]byte(step.press)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-ended:
		if err != nil || ctx.Err() != nil {
			t.Errorf("the dashboard ended with %v, %v", err, ctx.Err())
		}
	case <-ctx.Done():
		t.Fatal("the key q does not end the dashboard")
	}
}

// line is a proxy between the client and a machine. The test can cut its connections.
type line struct {
	net.Listener
	mu   sync.Mutex
	to   string // the address of the machine; empty while the connection is cut
	open []net.Conn
}

// connect sets the address to which the proxy forwards. An empty address cuts all connections.
func (l *line) connect(to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = to
	if to == "" {
		for _, c := range l.open {
			_ = c.Close()
		}
		l.open = nil
	}
}

func (l *line) serve() {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		to, err := net.Dial("tcp", l.to)
		if err != nil {
			_ = from.Close()
		} else {
			l.open = append(l.open, from, to)
			go func() { _, err := io.Copy(to, from); _ = errors.Join(err, to.Close()) }()
			go func() { _, err := io.Copy(from, to); _ = errors.Join(err, from.Close()) }()
		}
		l.mu.Unlock()
	}
}

// TestDashboardComesBack checks that the dashboard shows an unreachable machine as away, with the
// reason, and shows the data of the machine when it answers again.
func TestDashboardComesBack(t *testing.T) {
	fake, conn := startDashboardMachine(t, "zebra")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	cable := &line{Listener: listener}
	go cable.serve()
	conn.Flags.Endpoints = []string{listener.Addr().String()}
	feeds, err := newFeeds(&iostreams.Streams{}, conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), dashboardLimit)
	defer cancel()
	state := latest.New(dashboard.New([]dashboard.Machine{feeds[0].known}, false).Sized(120, 40))
	feeds[0].wanted = latest.New(dashboard.Log{})
	feeds[0].send = func(m dashboard.Message) { state.Update(func(s dashboard.State) dashboard.State { return s.Apply(m) }) }
	var running sync.WaitGroup
	running.Go(func() { feeds[0].run(ctx) })
	defer running.Wait()
	defer cancel()
	connected := []string{"zebra", "healthy", "2h00m", "1.2.3", "no memory: its answer cannot be read"}
	for _, step := range []struct {
		to  string
		see []string
	}{{"", []string{"away: the machine cannot be reached"}}, {fake.Address, connected}, {"", []string{"away: "}}, {fake.Address, connected}} {
		cable.connect(step.to)
		for _, part := range step.see {
			shown, err := latest.Wait(ctx, state, func(s dashboard.State) bool { return strings.Contains(s.Draw(), part) })
			if err != nil {
				t.Fatalf("the dashboard does not show %q, but\n%s", part, shown.Draw())
			}
		}
	}
}

// TestDashboardFeeds checks which machines newFeeds selects for contexts and flags.
func TestDashboardFeeds(t *testing.T) {
	fake, conn := startDashboardMachine(t, "zebra")
	feeds, err := newFeeds(&iostreams.Streams{}, conn, []string{"one", "one"})
	if want := (dashboard.Machine{Context: "one", Address: fake.Address}); err != nil || len(feeds) != 2 || feeds[1].known != want || feeds[1].index != 1 {
		t.Errorf("%v, %v", feeds, err)
	}
	if _, err := newFeeds(&iostreams.Streams{}, conn, []string{"one", "two"}); err == nil || !strings.Contains(err.Error(), `context "two"`) {
		t.Errorf("newFeeds for a context that does not exist: %v", err)
	}
	conn.Flags.Endpoints = []string{"10.0.0.11"}
	if _, err := newFeeds(&iostreams.Streams{}, conn, []string{"one"}); err == nil {
		t.Error("newFeeds accepts contexts together with an endpoint")
	}
}

// TestDashboardReportsCertificate checks when the dashboard reports that it cannot store the
// renewed certificate of its user: once, before it draws the screen, and not into the screen.
func TestDashboardReportsCertificate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "contexts")
	t.Setenv("ORLOP_CONFIG", file)
	operator, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := operator.Issue(pki.Spec{CN: "dora", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{gen.CACert: operator.CertPEM(), gen.CAKey: operator.KeyPEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err = contexts.Change(func(f *contexts.File) error {
		f.Contexts["one"] = contexts.Context{
			Endpoint: "10.0.0.11", Fingerprint: pki.Fingerprint(operator.Cert), Cert: string(leaf.CertPEM()), Key: string(leaf.KeyPEM()), Operator: dir,
		}
		return nil
	})
	if err == nil { // a directory with the name of the lock file prevents a change
		err = errors.Join(os.Remove(file+".lock"), os.Mkdir(file+".lock", 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	var reported bytes.Buffer
	ios := &iostreams.Streams{Err: &reported}
	feeds, err := newFeeds(ios, connect.New(ios), []string{"one"})
	if err != nil || strings.Count(reported.String(), "a new certificate of yours cannot be stored: ") != 1 {
		t.Fatalf("%v, reported %q", err, reported.String())
	}
	reported.Reset()
	if _, _, _, err := feeds[0].called(); err != nil || reported.Len() > 0 {
		t.Errorf("%v, written into the screen: %q", err, reported.String())
	}
}

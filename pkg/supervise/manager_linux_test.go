package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/service/profile"
	"golang.org/x/sys/unix"
)

// bench is a manager for one test, with the events that the manager has sent.
type bench struct {
	*Manager
	t      *testing.T
	mu     sync.Mutex
	events []string
}

func newBench(t *testing.T, groups cgroup.Tree) *bench {
	b := &bench{t: t}
	b.Manager = NewManager(Config{Reaper: reaper, Groups: groups, Event: func(service, kind, message string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, fmt.Sprintf("%s %s %s", service, kind, message))
	}})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := b.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			b.mu.Lock()
			defer b.mu.Unlock()
			t.Log(strings.Join(b.events, "\n"))
		}
	})
	return b
}

func (b *bench) service(name, role string, change ...func(*Service)) Service {
	s := Service{Name: name, GracePeriod: 5 * time.Second}
	s.Process.Args, s.Process.Env = self(b.t, role)
	for _, c := range change {
		c(&s)
	}
	return s
}

func needs(names ...string) func(*Service) { return func(s *Service) { s.DependsOn = names } }

func (b *bench) set(services ...Service) {
	b.t.Helper()
	if err := b.Set(services); err != nil {
		b.t.Fatal(err)
	}
}

// The method until waits until the function ok returns true for the status of the service, and
// returns this status. state describes the awaited status in the failure message.
func (b *bench) until(name, state string, ok func(Status) bool) Status {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	var found Status
	all, err := cell.Wait(ctx, b.Status(), func(all []Status) bool {
		i := slices.IndexFunc(all, func(s Status) bool { return s.Name == name })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0 && ok(found)
	})
	if err != nil {
		b.t.Fatalf("%s is not %s: %+v", name, state, all)
	}
	return found
}

// The method in waits until the service is in the phase p, and returns its status.
func (b *bench) in(name string, p Phase) Status {
	b.t.Helper()
	return b.until(name, string(p), func(s Status) bool { return s.State == p })
}

// output waits for a log line of the service that contains the text, and returns the line.
func (b *bench) output(name, text string) string {
	b.t.Helper()
	log, err := b.Log(name)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	for seq := uint64(0); ; {
		lines, _, err := log.After(ctx, seq)
		if err != nil {
			b.t.Fatalf("%s did not write %q", name, text)
		}
		for _, l := range lines {
			if seq = l.Seq; strings.Contains(l.Text, text) {
				return l.Text
			}
		}
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func TestKilledServiceIsBackAtOnce(t *testing.T) {
	b := newBench(t, "")
	// The first delay is an hour, so the test would fail if it waited for the delay.
	b.set(b.service("a", "sleep", func(s *Service) { s.Backoff.First, s.Backoff.Max = time.Hour, time.Hour }))
	first := b.in("a", Running)
	kill(t, first.PID)
	second := b.until("a", "restarted", func(s Status) bool { return s.State == Running && s.PID != first.PID })
	if second.Restarts != 1 {
		t.Errorf("the service runs again with %d restarts", second.Restarts)
	}
	kill(t, second.PID)
	again := b.in("a", BackingOff)
	if !strings.Contains(again.Detail, "signal 9") {
		t.Errorf("detail %q lacks the reason", again.Detail)
	}
	if err := b.Restart("a"); err != nil {
		t.Fatal(err)
	}
	b.until("a", "running after a restart", func(s Status) bool { return s.State == Running && s.PID != second.PID })
}

func TestFailureSaysWhy(t *testing.T) {
	b := newBench(t, "")
	b.set(b.service("a", "exit 7 cannot open the book"), Service{Name: "b", Process: Spec{Args: []string{"/does/not/exist"}}})
	if s := b.in("a", BackingOff); s.Detail != "ended with status 7, last line: cannot open the book" {
		t.Errorf("detail %q", s.Detail)
	}
	if s := b.in("b", BackingOff); !strings.Contains(s.Detail, "/does/not/exist") || s.PID != 0 {
		t.Errorf("%+v", s)
	}
	// The detail contains the last line of the present process, not a line of the previous process.
	b.set(b.service("c", "exit 7 panic: no book"))
	if s := b.in("c", BackingOff); s.Detail != "ended with status 7: panic: no book" {
		t.Errorf("detail %q", s.Detail)
	}
	b.set(b.service("c", "exit 8 cannot open the book"))
	s := b.until("c", "failed with status 8", func(s Status) bool { return s.State == BackingOff && strings.Contains(s.Detail, "status 8") })
	if s.Detail != "ended with status 8, last line: cannot open the book" {
		t.Errorf("detail %q", s.Detail)
	}
}

func TestOrderOfStartAndStop(t *testing.T) {
	b := newBench(t, "")
	socket := filepath.Join(t.TempDir(), "s")
	b.set(
		b.service("last", "sleep", needs("middle")),
		b.service("middle", "listen unix "+socket, needs("first"), func(s *Service) { s.Ready.Unix = socket }),
		b.service("first", "notify", func(s *Service) { s.Ready.Notify = true }),
	)
	b.in("last", Running)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := b.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var order []string
	for _, e := range b.events {
		for _, word := range []string{"→ running", "→ stopping"} {
			if strings.Contains(e, word) {
				order = append(order, strings.Fields(e)[0]+strings.TrimPrefix(word, "→"))
			}
		}
	}
	want := "first running, middle running, last running, last stopping, middle stopping, first stopping"
	if got := strings.Join(order, ", "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestProfile checks that a service serves profiles, also after its process was killed and started
// again.
func TestProfile(t *testing.T) {
	b := newBench(t, "")
	socket := filepath.Join(t.TempDir(), "of", "s")
	b.set(b.service("one", "profile", func(s *Service) { s.Ready.Notify, s.Profile = true, socket }))
	take := func() {
		t.Helper()
		text, err := profile.Fetch(t.Context(), socket, profile.Request{Kind: "goroutine"})
		if err != nil || !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
			t.Errorf("%q, %v", text, err)
		}
	}
	pid := b.in("one", Running).PID
	take()
	kill(t, pid)
	b.until("one", "a new process", func(s Status) bool { return s.State == Running && s.PID != pid })
	take()
}

func TestNeedThatIsLostKillsNobody(t *testing.T) {
	b := newBench(t, "")
	b.set(b.service("base", "notify", func(s *Service) { s.Ready.Notify = true }), b.service("top", "sleep", needs("base")))
	top := b.in("top", Running)
	base := b.in("base", Running)
	if len(base.Components) != 1 || base.Components[0].Name != "part" || !base.Components[0].Ready || base.Components[0].Detail != "by test" {
		t.Errorf("components %+v", base.Components)
	}
	for _, want := range []Phase{Unready, Running, Unready} {
		if err := unix.Kill(base.PID, unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		b.in("base", want)
	}
	kill(t, base.PID)
	b.until("base", "a new process", func(s Status) bool { return s.State == Running && s.PID != base.PID })
	if now := b.in("top", Running); now.PID != top.PID {
		t.Errorf("top was restarted: process %d, before %d", now.PID, top.PID)
	}
}

func TestSetChangesOnlyWhatDiffers(t *testing.T) {
	b := newBench(t, "")
	one, two, three := b.service("one", "sleep"), b.service("two", "sleep"), b.service("three", "sleep")
	b.set(one, two, three)
	pids := map[string]int{}
	for _, name := range []string{"one", "two", "three"} {
		pids[name] = b.in(name, Running).PID
	}
	b.set(one, two, three)
	two.Process.Env = append(slices.Clone(two.Process.Env), "NEW=1")
	b.set(one, two, b.service("four", "sleep"))
	b.in("four", Running)
	b.until("two", "restarted", func(s Status) bool { return s.State == Running && s.PID != pids["two"] })
	if s := b.in("one", Running); s.PID != pids["one"] {
		t.Error("one was restarted although it did not change")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := cell.Wait(ctx, b.Status(), func(all []Status) bool { return len(all) == 3 }); err != nil {
		t.Error("the removed service three still has a status")
	}
	if err := b.Set([]Service{{Name: "bad"}}); err == nil {
		t.Error("Set accepts a service without a program")
	}
	if got := len(b.Services()); got != 3 {
		t.Errorf("%d services after Set has returned an error; want the former 3", got)
	}
	if _, err := b.Log("three"); err == nil || !strings.Contains(err.Error(), "four, one, two") {
		t.Errorf("error %v; want the names of the present services", err)
	}
}

func TestStubbornServiceIsKilled(t *testing.T) {
	b := newBench(t, "")
	b.set(b.service("a", "stubborn", func(s *Service) { s.GracePeriod = 100 * time.Millisecond }))
	b.output("a", "stubborn")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := b.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func TestShutdownOutOfTimeKillsAndSaysWhom(t *testing.T) {
	b := newBench(t, "")
	b.set(b.service("a", "stubborn", func(s *Service) { s.GracePeriod = time.Hour }), b.service("b", "stubborn", needs("a"), func(s *Service) { s.GracePeriod = time.Hour }))
	b.in("b", Running)
	b.output("b", "stubborn")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := b.Shutdown(ctx)
	if err == nil || !strings.Contains(err.Error(), "services a, b: killed") || strings.Contains(err.Error(), "still running") {
		t.Errorf("error %v", err)
	}
	if err := b.Set(nil); !errors.Is(err, ErrShutdown) {
		t.Errorf("Set after Shutdown: %v, want ErrShutdown", err)
	}
}

func TestStartThatIsNeverReadyIsTriedAgain(t *testing.T) {
	b := newBench(t, "")
	b.set(b.service("a", "sleep", func(s *Service) {
		s.Ready.Notify, s.StartTimeout = true, 300*time.Millisecond
		s.Backoff.First = 10 * time.Millisecond
	}))
	s := b.until("a", "restarted twice", func(s Status) bool { return s.Restarts >= 2 })
	// Each failure doubles the timeout, which is 300 ms at first. If this test is slow, the service
	// may have failed more than once.
	if s = b.in("a", Starting); !regexp.MustCompile(`was not ready within (600ms|1\.2s|2\.4s)$`).MatchString(s.Detail) {
		t.Errorf("%+v", s)
	}
}

func TestTCPProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	b := newBench(t, "")
	b.set(b.service("a", "listen tcp "+address, func(s *Service) { s.Ready.TCP = address }))
	b.in("a", Running)
}

// TestFloodDoesNotGrow checks that a service with endless output never blocks, even with a slow
// reader, and that the number of retained lines is limited.
func TestFloodDoesNotGrow(t *testing.T) {
	b := newBench(t, "")
	b.set(b.service("a", "flood", func(s *Service) { s.LogLines, s.LogBytes = 50, 1<<20 }))
	log, err := b.Log("a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := errors.New("done")
	err = log.Follow(ctx, 0, func(_ LogLine, missed uint64) error {
		if missed > 0 {
			return done
		}
		<-time.After(time.Millisecond) // a slow reader
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatalf("the slow reader did not miss any line: %v", err)
	}
	if got := len(log.Tail(0)); got > 50 {
		t.Errorf("%d lines are retained; want at most 50", got)
	}
}

// TestGroup starts services in control groups and kills their main processes. The manager then
// kills the other processes of the group, except if the service has LeaveChildren.
func TestGroup(t *testing.T) {
	tree := testTree(t)
	t.Cleanup(func() { cleanTree(t, tree, "/orlop-test/all", "/orlop-test/leave", "/orlop-test") })
	b := newBench(t, tree) // its cleanup runs before cleanTree, because it is registered later
	in := func(group string, leave bool) func(*Service) {
		return func(s *Service) { s.Cgroup, s.LeaveChildren = group, leave }
	}
	b.set(b.service("all", "spawn", in("/orlop-test/all", false)), b.service("leave", "spawn", in("/orlop-test/leave", true)))
	left := map[string]int{}
	for _, name := range []string{"all", "leave"} {
		left[name] = atoi(t, strings.Fields(b.output(name, "grandchild"))[1])
		pids, err := tree.Procs("/orlop-test/" + name)
		if err != nil || !slices.Contains(pids, b.in(name, Running).PID) || !slices.Contains(pids, left[name]) {
			t.Fatalf("group %s has the processes %v (%v); want the main process and %d", name, pids, err, left[name])
		}
		pid := b.in(name, Running).PID
		kill(t, pid)
		b.until(name, "restarted", func(s Status) bool { return s.State == Running && s.PID != pid })
	}
	if !slices.Contains(procs(t, tree, "/orlop-test/leave"), left["leave"]) {
		t.Error("the child of a service with LeaveChildren was killed")
	}
	deadline := time.Now().Add(20 * time.Second)
	for slices.Contains(procs(t, tree, "/orlop-test/all"), left["all"]) {
		if time.Now().After(deadline) {
			t.Fatal("the child of a service without LeaveChildren still runs")
		}
		<-time.After(5 * time.Millisecond)
	}
}

func procs(t *testing.T, tree cgroup.Tree, group string) []int {
	t.Helper()
	pids, err := tree.Procs(group)
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

func testTree(t *testing.T) cgroup.Tree {
	t.Helper()
	for _, mount := range []string{cgroup.Mount, cgroup.Mount + "/unified"} {
		var s unix.Statfs_t
		if os.Getuid() == 0 && unix.Statfs(mount, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC && unix.Access(mount, unix.W_OK) == nil {
			return cgroup.Tree(mount)
		}
	}
	t.Skip("needs root and a cgroup v2 hierarchy")
	return ""
}

// cleanTree kills the processes in the groups and removes the groups, in this order.
func cleanTree(t *testing.T, tree cgroup.Tree, groups ...string) {
	t.Helper()
	for _, group := range groups {
		if err := tree.Kill(group); err != nil {
			t.Error(err)
		}
		deadline := time.Now().Add(20 * time.Second)
		for {
			err := tree.Remove(group)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Error(err)
				break
			}
			<-time.After(5 * time.Millisecond)
		}
	}
}

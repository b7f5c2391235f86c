package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func run(t *testing.T, ctx context.Context, role string, change func(*Spec)) (string, Exit) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	args, env := self(t, role)
	spec := Spec{Args: args, Env: env}
	if change != nil {
		change(&spec)
	}
	p, err := reaper.Start(spec, Files{Output: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	text := readEnd(r, 1<<20)
	select {
	case <-p.Done():
	case <-ctx.Done():
		t.Fatalf("%s does not end", role)
	}
	return string(text), p.Exit()
}

func TestRun(t *testing.T) {
	args, env := self(t, "exit 0 all is well")
	out, err := reaper.RunCommand(t.Context(), Command{Args: args, Env: env})
	if strings.TrimSpace(string(out)) != "all is well" || err != nil {
		t.Fatalf("%q, %v", out, err)
	}
	_, env = self(t, "exit 3 no space left")
	_, err = reaper.RunCommand(t.Context(), Command{Args: args, Env: env})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Exit.Code != 3 || !strings.Contains(err.Error(), "ended with status 3: no space left") {
		t.Fatalf("error %v", err)
	}
	_, env = self(t, "cat")
	big := strings.Repeat("0123456789", 20_000) // more than the buffer of a pipe
	if out, err = reaper.RunCommand(t.Context(), Command{Args: args, Env: env, Stdin: []byte(big)}); string(out) != big || err != nil {
		t.Fatalf("cat returned %d bytes, %v; want %d", len(out), err, len(big))
	}
	_, env = self(t, "complain 0 answer")
	if out, err = reaper.RunCommand(t.Context(), Command{Args: args, Env: env, SeparateStderr: true}); string(out) != "answer\n" || err != nil {
		t.Fatalf("with SeparateStderr: %q, %v", out, err)
	}
	_, env = self(t, "complain 4 answer")
	if out, err = reaper.RunCommand(t.Context(), Command{Args: args, Env: env, SeparateStderr: true}); string(out) != "answer\n" || !errors.As(err, &exit) || exit.Output != "complaint" {
		t.Fatalf("with SeparateStderr and status 4: %q, %v", out, err)
	}
	_, env = self(t, "complain 0 answer")
	if out, err = reaper.RunCommand(t.Context(), Command{Args: args, Env: env}); string(out) != "complaint\nanswer\n" || err != nil {
		t.Fatalf("without SeparateStderr: %q, %v", out, err)
	}
	file, err := os.CreateTemp(t.TempDir(), "file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_, env = self(t, "fill 3 content")
	if out, err = reaper.RunCommand(t.Context(), Command{Args: args, Env: env, Files: []*os.File{file}}); err != nil {
		t.Fatalf("with an inherited file: %q, %v", out, err)
	}
	if text, err := os.ReadFile(file.Name()); string(text) != "content" || err != nil {
		t.Fatalf("content of the inherited file: %q, %v", text, err)
	}
	if _, err = reaper.Run(t.Context(), "/does/not/exist"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("error %v; want os.ErrNotExist", err)
	}
}

// TestParser checks that the error of a parser does not contain its output.
func TestParser(t *testing.T) {
	args, env := self(t, "complain 0 answer")
	if out, err := reaper.Parser(Command{Args: args, Env: env})(t.Context(), nil, nil, 0); string(out) != "answer\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	_, env = self(t, "complain 4 answer")
	out, err := reaper.Parser(Command{Args: args, Env: env})(t.Context(), nil, nil, 0)
	if out != nil || err == nil || err.Error() != "its process ended with status 4" {
		t.Errorf("a parser that ends with status 4: %q, %v", out, err)
	}
}

func TestRunIsKilledWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	args, env := self(t, "sleep")
	start := time.Now()
	_, err := reaper.RunCommand(ctx, Command{Args: args, Env: env})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 20*time.Second {
		t.Fatalf("%v after %v", err, time.Since(start))
	}
}

// TestManyAtOnce starts children that exit at once, from many goroutines. A reaper with a race
// would lose an exit status.
func TestManyAtOnce(t *testing.T) {
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 4 {
				want := 10 + i
				args, env := self(t, "exit "+string(rune('0'+want/10))+string(rune('0'+want%10)))
				_, err := reaper.RunCommand(t.Context(), Command{Args: args, Env: env})
				var exit *ExitError
				if !errors.As(err, &exit) || exit.Exit.Code != want {
					t.Errorf("%v; want status %d", err, want)
				}
			}
		})
	}
	group.Wait()
}

func TestOrphansAreCollected(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
			t.Error(err)
		}
	}()
	args, env := self(t, "spawn and leave")
	out, err := reaper.RunCommand(t.Context(), Command{Args: args, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	// The grandchild may write "sleeping" before its parent has written this line.
	_, rest, _ := strings.Cut(string(out), "grandchild ")
	number, _, found := strings.Cut(rest, " ")
	if !found {
		t.Fatalf("output %q", out)
	}
	pid := atoi(t, number)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for {
		select {
		case got := <-orphans:
			if got == number+" was ended by signal 9 (killed)" {
				return
			}
		case <-deadline:
			t.Fatalf("process %d was not collected", pid)
		}
	}
}

func TestAttributes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to become another user")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	program := publicCopy(t)
	// priority is 20 minus the niceness: the value of the system call getpriority(2).
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		set  func(*Spec)
		want []string
	}{
		{"another user without capabilities", func(s *Spec) {
			s.UID, s.GID, s.Groups, s.NoNewPrivs = 12345, 12346, []uint32{7, 8}, true
		}, []string{"Uid:\t12345\t12345", "Gid:\t12346\t12346", "Groups:\t7 8", "NoNewPrivs:\t1",
			"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "CapEff:\t0000000000000000", "leader true"}},
		{"one capability", func(s *Spec) { s.UID, s.Capabilities = 12345, []uintptr{unix.CAP_NET_BIND_SERVICE} },
			[]string{"NoNewPrivs:\t0", "CapBnd:\t0000000000000400", "CapAmb:\t0000000000000400", "CapEff:\t0000000000000400"}},
		{"nice, memory score, limits", func(s *Spec) {
			s.Nice, s.OOMScoreAdj = 7, new(500)
			s.Rlimits = []Rlimit{{unix.RLIMIT_CORE, 4096, unix.RLIM_INFINITY}}
		}, []string{"nice 7", "core 4096", "Uid:\t0"}},
		{"machined retains no attribute of a child", func(*Spec) {}, []string{"NoNewPrivs:\t0", fmt.Sprintf("nice %d", 20-priority), "Uid:\t0"}},
	} {
		text, exit := run(t, ctx, "show", func(s *Spec) {
			s.Args = []string{program, "-test.run=^$"}
			c.set(s)
		})
		if !exit.OK() {
			t.Fatalf("%s: %v", c.name, exit)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, text)
			}
		}
	}
}

// publicCopy returns the path of a copy of the test executable that every user may execute.
func publicCopy(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "supervise")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/program", content, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir + "/program"
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n := 0
	for _, c := range s {
		n = 10*n + int(c-'0')
	}
	return n
}

// TestTooMuch checks that a command that exceeds its output limit is killed, even if it writes
// endlessly. A command that writes exactly as many bytes as the limit allows is not killed.
func TestTooMuch(t *testing.T) {
	args, env := self(t, "exit 0 12345")
	if out, err := reaper.RunCommand(t.Context(), Command{Args: args, Env: env, MaxOutput: 6}); string(out) != "12345\n" || err != nil {
		t.Errorf("as many bytes as MaxOutput: %q, %v", out, err)
	}
	if out, err := reaper.RunCommand(t.Context(), Command{Args: args, Env: env, MaxOutput: 5}); out != nil || !errors.Is(err, ErrTooMuch) {
		t.Errorf("one byte more than MaxOutput: %q, %v", out, err)
	}
	args, env = self(t, "show 1000")
	if out, err := reaper.RunCommand(t.Context(), Command{Args: args, Env: env, KillFirst: true, MaxOutput: MaxOutput}); err != nil || !strings.Contains(string(out), "oom 1000") {
		t.Errorf("with KillFirst: %q, %v; want oom_score_adj 1000", out, err)
	}
	args, env = self(t, "chatter")
	if _, err := reaper.RunCommand(t.Context(), Command{Args: args, Env: env, MaxOutput: 100}); !errors.Is(err, ErrTooMuch) {
		t.Errorf("endless output: %v", err)
	}
}

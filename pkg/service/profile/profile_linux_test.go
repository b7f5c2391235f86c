package profile

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		kind     string
		duration time.Duration
		want     Request
		problem  string
	}{
		{"", 0, Request{"cpu", DefaultDuration}, ""},
		{"cpu", time.Second, Request{"cpu", time.Second}, ""},
		{"heap", 0, Request{"heap", 0}, ""},
		{"heap", time.Second, Request{}, "duration: a profile of kind heap shows a moment"},
		{"cpu", MaxDuration + 1, Request{}, "is not between 0 and 1m0s"},
		{"cpu", -1, Request{}, "is not between 0 and 1m0s"},
		{"mutex", 0, Request{}, `kind "mutex": unknown profile; expected one of cpu, heap, allocs, goroutine`},
	} {
		got, err := Parse(c.kind, c.duration)
		if c.problem == "" && (err != nil || got != c.want) {
			t.Errorf("%q, %v: %+v, %v; want %+v", c.kind, c.duration, got, err, c.want)
		}
		if c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%q, %v: %v; want %q", c.kind, c.duration, err, c.problem)
		}
	}
}

// serve serves profiles of this process, as a process does that has inherited its socket. It
// returns the path of the socket.
func serve(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "directory", "p.sock")
	socket, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the socket: %v, %v; want 0700", info.Mode(), err)
	}
	fd, err := unix.Dup(int(socket.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(Env, strconv.Itoa(fd))
	if err := FromEnv(); err != nil {
		t.Fatal(err)
	}
	if _, there := os.LookupEnv(Env); there {
		t.Error(Env + " is still in the environment")
	}
	return path
}

// names reports whether a profile contains the name of a function.
func names(t *testing.T, profile []byte, function string) bool {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(profile))
	if err != nil {
		t.Fatalf("%v: %q", err, profile[:min(len(profile), 200)])
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(text, []byte(function))
}

// spinHere keeps a CPU busy until the context ends.
func spinHere(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		runtime.KeepAlive(n * n)
	}
}

var held []byte

// holdHere allocates memory that a heap profile must show.
func holdHere() { held = make([]byte, 8<<20) }

// TestKinds takes a profile of each kind, over the socket and directly. Each profile must contain
// the name of the function that was active.
func TestKinds(t *testing.T) {
	path := serve(t)
	busy, stop := context.WithCancel(t.Context())
	defer stop()
	go spinHere(busy)
	holdHere()
	runtime.GC() // a heap profile shows the state after the last garbage collection
	takers := map[string]func(context.Context, Request) ([]byte, error){
		"Profile": Profile,
		"Fetch":   func(ctx context.Context, o Request) ([]byte, error) { return Fetch(ctx, path, o) },
	}
	for name, take := range takers {
		for kind, function := range map[string]string{"cpu": "spinHere", "heap": "holdHere", "allocs": "holdHere", "goroutine": "spinHere"} {
			o := Request{Kind: kind}
			if kind == "cpu" {
				o.Duration = 300 * time.Millisecond
			}
			text, err := take(t.Context(), o)
			// On a busy computer, this process may get no CPU time during a CPU profile.
			for deadline := time.Now().Add(time.Minute); kind == "cpu" && err == nil && !names(t, text, function) && time.Now().Before(deadline); {
				text, err = take(t.Context(), o)
			}
			if err != nil {
				t.Errorf("%s, %s: %v", name, kind, err)
			} else if !names(t, text, function) {
				t.Errorf("%s, %s: the profile does not contain %s", name, kind, function)
			}
		}
	}
	runtime.KeepAlive(held)
}

// TestLeaving checks that a CPU profile ends when the client disconnects, and that the next CPU
// profile can begin at once.
func TestLeaving(t *testing.T) {
	path := serve(t)
	leaving, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Fetch(leaving, path, Request{"cpu", MaxDuration})
		done <- err
	}()
	for deadline := time.Now().Add(10 * time.Second); ; {
		text, err := Fetch(t.Context(), path, Request{Kind: "goroutine"})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the profile does not begin: %v", err)
		}
		if names(t, text, "pprof.profileWriter") {
			break
		}
	}
	if _, err := Fetch(t.Context(), path, Request{"cpu", time.Millisecond}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("error of a second profile at the same time: %v", err)
	}
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the disconnected client got %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		_, err := Fetch(t.Context(), path, Request{"cpu", time.Millisecond})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the next profile does not begin: %v", err)
		}
	}
}

func TestRefused(t *testing.T) {
	path := serve(t)
	if _, err := Fetch(t.Context(), path, Request{Kind: "nonsense"}); err == nil || err.Error() != `there is no profile "nonsense"` {
		t.Errorf("error of an unknown kind: %v", err)
	}
	if _, err := Fetch(t.Context(), path+"x", Request{Kind: "heap"}); err == nil || !strings.Contains(err.Error(), "it does not answer") {
		t.Errorf("error without a server: %v", err)
	}
	for _, value := range []string{"", "x", "1", "999999"} {
		t.Setenv(Env, value)
		if err := FromEnv(); err == nil {
			t.Errorf("FromEnv accepts %s=%q", Env, value)
		}
	}
	if err := os.Unsetenv(Env); err != nil {
		t.Fatal(err)
	}
	if err := FromEnv(); err != nil {
		t.Errorf("FromEnv without the variable %s: %v", Env, err)
	}
}

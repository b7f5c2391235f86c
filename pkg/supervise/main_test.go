package supervise

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/service/notify"
	"github.com/orlop-os/orlop/pkg/service/profile"
	"golang.org/x/sys/unix"
)

// roleEnv is the environment variable that tells the test executable to play the role of a child
// process. The tests therefore need no other program, and can run under the product kernel in a
// root without programs.
const roleEnv = "SUPERVISE_TEST_ROLE"

// reaper is the only reaper of the test process.
var reaper = NewReaper(func(pid int, exit Exit) {
	select {
	case orphans <- fmt.Sprint(pid, " ", exit):
	default:
	}
})

// orphans receives "PID EXIT" for each collected orphan.
var orphans = make(chan string, 64)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		// A failed test may leave this process behind. The process ends after 10 minutes, the
		// default time limit of go test.
		time.AfterFunc(10*time.Minute, func() { os.Exit(3) })
		os.Exit(play(role))
	}
	go reaper.Loop(context.Background())
	os.Exit(m.Run())
}

// self returns the arguments and the environment that start the test executable in a role. role is
// the name of the role, followed by the arguments of the role.
func self(t testing.TB, role string) (args, env []string) {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{path, "-test.run=^$"}, []string{roleEnv + "=" + role, "GORACE=atexit_sleep_ms=0"}
}

// play plays a role in a child process and returns its exit status. The comment of a role shows its
// arguments in capital letters.
func play(role string) int {
	words := strings.Fields(role)
	switch words[0] {
	case "exit": // exit STATUS [TEXT…]: writes TEXT
		fmt.Println(strings.Join(words[2:], " "))
		status := 0
		fmt.Sscan(words[1], &status)
		return status
	// complain STATUS TEXT: writes "complaint" to standard error, and TEXT to standard output
	case "complain":
		fmt.Fprintln(os.Stderr, "complaint")
		fmt.Println(words[2])
		status := 0
		fmt.Sscan(words[1], &status)
		return status
	case "chatter": // writes forever
		for {
			fmt.Println("chatter")
		}
	case "sleep":
		fmt.Println("sleeping")
		_ = unix.Pause() // until a signal
	case "stubborn": // ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("stubborn")
		_ = unix.Pause() // until a signal
	case "show": // show [OOM]: writes its own attributes after its oom_score_adj has become OOM
		// The parent sets oom_score_adj after the start of this process, so the role waits for the
		// value.
		for deadline := time.Now().Add(10 * time.Second); len(words) > 1 && time.Now().Before(deadline); runtime.Gosched() {
			if now, _ := os.ReadFile("/proc/self/oom_score_adj"); strings.TrimSpace(string(now)) == words[1] {
				break
			}
		}
		status, _ := os.ReadFile("/proc/self/status")
		group, _ := os.ReadFile("/proc/self/cgroup")
		oom, _ := os.ReadFile("/proc/self/oom_score_adj")
		nice, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
		var core syscall.Rlimit
		_ = syscall.Getrlimit(unix.RLIMIT_CORE, &core)
		sid, _ := unix.Getsid(0)
		fmt.Printf("%s\n%s\noom %snice %d\ncore %d\nleader %v\n", status, group, oom, 20-nice, core.Cur, sid == os.Getpid())
	case "fill": // fill DESCRIPTOR TEXT: writes TEXT to an inherited file descriptor
		fd := 0
		fmt.Sscan(words[1], &fd)
		if _, err := os.NewFile(uintptr(fd), "file").WriteString(words[2]); err != nil {
			fmt.Println(err)
			return 1
		}
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "flood": // writes long lines until a write fails
		line := append(bytes.Repeat([]byte("x"), 99), '\n')
		for {
			if _, err := os.Stdout.Write(line); err != nil {
				return 1
			}
		}
	case "notify": // reports not ready, then at once ready; changes its report on each SIGUSR1
		return playNotify()
	case "profile": // serves profiles and reports that it is ready
		w, err := notify.FromEnv()
		if err == nil {
			err = profile.FromEnv()
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		_ = w.Send("", true, "") // the test fails if the message is not sent
		select {}
	case "listen": // listen NETWORK ADDRESS: accepts connections
		l, err := net.Listen(words[1], words[2])
		if err != nil {
			fmt.Println(err)
			return 1
		}
		for {
			if c, err := l.Accept(); err == nil {
				c.Close()
			}
		}
	case "spawn": // spawn [LEAVE]: starts a grandchild; exits only with the argument LEAVE
		path, _ := os.Executable()
		pid, _, err := syscall.StartProcess(path, []string{path, "-test.run=^$"}, &syscall.ProcAttr{Env: []string{roleEnv + "=sleep"}, Files: []uintptr{0, 1, 2}})
		fmt.Println("grandchild", pid, err)
		if len(words) > 1 {
			return 0
		}
		_ = unix.Pause() // until a signal
	}
	return 0
}

func playNotify() int {
	change := make(chan os.Signal, 1)
	signal.Notify(change, syscall.SIGUSR1)
	w, err := notify.FromEnv()
	if err != nil || w == nil {
		fmt.Println("no notify", err)
		return 1
	}
	for ready, first := false, true; ; ready = !ready {
		if err := w.Send("part", ready, "by test"); err != nil {
			return 1
		}
		if !first {
			<-change
		}
		first = false
	}
}

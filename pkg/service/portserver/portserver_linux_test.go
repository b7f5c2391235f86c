package portserver

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/service/notify"
)

// TestProcess checks that a process drops its privileges before it serves, that machined gets its
// report, and that SIGTERM ends the process with status 0.
func TestProcess(t *testing.T) {
	t.Cleanup(func() { panics.OnPanic(nil) })
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	fd, err := unix.Dup(int(write.Fd()))
	if err = errors.Join(err, write.Close()); err != nil {
		t.Fatal(err)
	}
	t.Setenv(notify.Env, strconv.Itoa(fd))
	dropped := false
	p := Process{
		Name:             "test",
		GiveUpPrivileges: func() error { dropped = true; return nil },
		Serve: func(ctx context.Context, listener net.Listener, ready func(ok bool, detail string)) error {
			defer listener.Close()
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil || !dropped {
				t.Errorf("%v; privileges dropped: %t", err, dropped)
				return err
			}
			ready(true, "serving")
			if err := errors.Join(conn.Close(), syscall.Kill(os.Getpid(), syscall.SIGTERM)); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		},
	}
	if status := p.Main(); status != 0 {
		t.Errorf("status %d", status)
	}
	if line, err := bufio.NewReader(read).ReadString('\n'); line != `{"component":"test","ready":true,"detail":"serving"}`+"\n" {
		t.Errorf("machined reads %q, %v", line, err)
	}
}

// TestFailures checks that a process without its port does not drop its privileges. A process that
// cannot drop its privileges does not serve.
func TestFailures(t *testing.T) {
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p := Process{
		Name: "test", Port: taken.Addr().(*net.TCPAddr).Port,
		GiveUpPrivileges: func() error { t.Error("the process drops its privileges although its port is taken"); return nil },
		Serve: func(context.Context, net.Listener, func(bool, string)) error {
			t.Error("the process serves")
			return nil
		},
	}
	if status := p.Main(); status != 1 {
		t.Errorf("the port is taken: status %d, want 1", status)
	}
	p.Port, p.GiveUpPrivileges = 0, func() error { return errors.New("the process runs as root") }
	if status := p.Main(); status != 1 {
		t.Errorf("the process cannot drop its privileges: status %d, want 1", status)
	}
}

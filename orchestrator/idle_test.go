package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/service/notify"
)

const (
	idle = "idle" // the name of a process that does nothing (runIdle)
	// envAbandon is set in the test process that TestProcessesEnd starts. Its value is the root
	// directory of the machine.
	envAbandon = "ORLOP_TEST_ABANDON"
)

// runIdle reports that it is ready, and waits until ctx is done, for at most a minute.
func runIdle(ctx context.Context) error {
	announce, err := notify.FromEnv()
	if err != nil {
		return err
	}
	if err := announce.Send(idle, true, ""); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(time.Minute):
		return errors.New("the idle process was not ended within a minute")
	}
}

// TestProcessesEnd checks that the processes that a test has started end with the process of the
// test, although a panic skips t.Cleanup. Their log is a FIFO here, so a read of it ends when all
// of them have ended.
func TestProcessesEnd(t *testing.T) {
	if root := os.Getenv(envAbandon); root != "" {
		machine{root: root}.start(t, idle, time.Now()).waitReady(t, time.Minute, idle)
		// The panic is not in the goroutine of the test, like the panic of a timeout.
		go panic("abandoned")
		select {}
	}
	root := t.TempDir()
	fifo := filepath.Join(root, idle+".log")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()

	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), envAbandon+"="+root)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: abandoned") {
		t.Fatalf("the process of the test: %v\n%s", err, out)
	}
	if err := log.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(log); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a process still runs: %s", text)
	} else if err != nil {
		t.Error(err)
	}
}

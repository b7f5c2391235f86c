//go:build !cgo

// These tests run only without cgo, as machined does. With cgo, a process has threads that Go does
// not know, and the system calls for all threads fail.

package attest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/orlop-os/orlop/pkg/tpm/tpmtest"
)

const (
	role     = "ATTEST_TEST_ROLE" // variable that selects the process in TestMain
	stranger = 65534              // user ID of the process
)

// TestMain runs the process that talks to the TPM if the environment contains the variable role.
// Otherwise, it runs the tests.
func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		os.Exit(m.Run())
	}
	// The process changes its user itself: the test binary is in a directory that only root can
	// read.
	if os.Getuid() == 0 {
		if err := errors.Join(syscall.Setgid(stranger), syscall.Setuid(stranger)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(Main())
}

// start returns a function that runs the test binary as the process that talks to the TPM. The
// process gets the connection tpm in place of the device.
func start(tpm *os.File) Start {
	return func(ctx context.Context, question []byte, files []*os.File, _ int) ([]byte, error) {
		c := exec.CommandContext(ctx, "/proc/self/exe")
		c.Env, c.Stdin, c.ExtraFiles = append(Environment, role+"=attest"), bytes.NewReader(question), []*os.File{tpm, files[1]}
		var problem bytes.Buffer
		c.Stderr = &problem
		out, err := c.Output()
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, &problem)
		}
		return out, nil
	}
}

// files returns an Asker with an empty file in place of the TPM, and a file with the given event
// log.
func files(t *testing.T, log []byte) *Asker {
	t.Helper()
	a := &Asker{Device: filepath.Join(t.TempDir(), "tpm"), Log: filepath.Join(t.TempDir(), "log")}
	if err := errors.Join(os.WriteFile(a.Device, nil, 0o600), os.WriteFile(a.Log, log, 0o600)); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestProcess runs an attestation in the confined process, with an emulated TPM.
func TestProcess(t *testing.T) {
	conn := tpmtest.Start(t).ReadWriter.(*net.UnixConn)
	tpm, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer tpm.Close()
	a := files(t, encode())
	a.Start = start(tpm)
	keys, err := a.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	challenge, content, err := keys.NewChallenge()
	if err != nil {
		t.Fatal(err)
	}
	nonce := bytes.Repeat([]byte{3}, NonceSize)
	e, err := a.Attest(t.Context(), nonce, challenge, someClaims)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Verify(keys, nonce, content, someClaims.MachineKey); err != nil {
		t.Error(err)
	}
	long := files(t, make([]byte, MaxLog+1))
	long.Start = a.Start
	if _, err := long.Attest(t.Context(), nonce, challenge, someClaims); err == nil || err.Error() != "TPM: the event log has more than 1024 KiB" {
		t.Errorf("a log that is too long: %v", err)
	}
}

// TestAsker checks the errors that PID 1 reports about the process and its answers.
func TestAsker(t *testing.T) {
	says := func(text string, err error) Start {
		return func(context.Context, []byte, []*os.File, int) ([]byte, error) { return []byte(text), err }
	}
	missing := func(a *Asker, file string) *Asker {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		return a
	}
	noTPM, noLog := files(t, nil), files(t, nil)
	for _, c := range []struct {
		name  string
		asker *Asker
		start Start
		want  string
	}{
		{"no TPM", missing(noTPM, noTPM.Device), says("{}", nil), ErrNone.Error()},
		{"no log", missing(noLog, noLog.Log), says("{}", nil), "TPM: the firmware left no event log; enable the log of TPM 2.0 in its setup"},
		{"no answer", files(t, nil), says("", errors.New("its process was killed")), "TPM: it gives no answer: its process was killed"},
		{"no JSON", files(t, nil), says("[", nil), "TPM: the process that talks to it gives no valid answer"},
		{"an error", files(t, nil), says(`{"failed":"has no \u001b[31mPCRs"}`, nil), "TPM: has no"},
	} {
		c.asker.Start = c.start
		if _, err := c.asker.Keys(t.Context()); err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	var second error
	busy := files(t, nil)
	busy.Start = func(ctx context.Context, _ []byte, _ []*os.File, _ int) ([]byte, error) {
		_, second = busy.Keys(ctx)
		return []byte("{}"), nil
	}
	if _, err := busy.Keys(t.Context()); err != nil || !errors.Is(second, ErrBusy) {
		t.Errorf("first call: %v; a second call during the first: %v", err, second)
	}
}

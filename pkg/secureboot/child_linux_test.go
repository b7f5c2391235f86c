//go:build !cgo

// These tests run only without cgo, as machined does. With cgo, a process has threads that Go does
// not know, and syscall.AllThreadsSyscall, which confines all threads at once, fails.

package secureboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const (
	role     = "SECUREBOOT_TEST_ROLE" // environment variable: the role of the process
	stranger = 65534                  // user ID of the checking process
)

// TestMain runs the tests, or the role of a child process.
func TestMain(m *testing.M) {
	// The child process changes its user itself, because only root can read the directory of the
	// test binary.
	if os.Getenv(role) != "" && os.Getuid() == 0 {
		if err := errors.Join(syscall.Setgid(stranger), syscall.Setuid(stranger)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "check":
		os.Exit(Main())
	case "look":
		if err := confineSelf(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		_, err := os.Open("/proc/self/status")
		fmt.Println(errors.Is(err, os.ErrPermission))
		os.Exit(0)
	}
	os.Exit(2)
}

// start returns a Start that runs the test binary in the given role, the one of the checking
// process or another. In production, machined starts the checking process.
func start(name string) Start {
	return func(ctx context.Context, question []byte, files []*os.File, _ int) ([]byte, error) {
		c := exec.CommandContext(ctx, "/proc/self/exe")
		c.Env, c.Stdin, c.ExtraFiles = append(Environment, role+"="+name), bytes.NewReader(question), files
		var problem bytes.Buffer
		c.Stderr = &problem
		out, err := c.Output()
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, problem.String())
		}
		return out, nil
	}
}

// TestProcess checks that the confined process accepts and rejects images as the firmware does. One
// of the images has the usual size of a boot image.
func TestProcess(t *testing.T) {
	signed, esl := load(t, "signed.efi"), load(t, "db.esl")
	enabled := map[string][]byte{"SecureBoot": {1}, "db": esl}
	revoked := map[string][]byte{"SecureBoot": {1}, "db": esl, "dbx": esl}
	large := append(bytes.Clone(load(t, "unsigned.efi")), make([]byte, 32<<20)...)
	for name, c := range map[string]struct {
		variables map[string][]byte
		image     []byte
		want      string
	}{
		"accepted": {enabled, signed, ""},
		"revoked":  {revoked, signed, "is in dbx"},
		"unsigned": {enabled, load(t, "unsigned.efi"), "the boot image has no signature"},
		"large":    {enabled, large, "the boot image has no signature"},
	} {
		err := Checker{Dir: firmware(t, c.variables), Start: start("check")}.CheckBytes(t.Context(), c.image)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestProcessOpensNothing checks that the confined process cannot open a file.
func TestProcessOpensNothing(t *testing.T) {
	out, err := start("look")(t.Context(), nil, nil, 0)
	if err != nil || strings.TrimSpace(string(out)) != "true" {
		t.Errorf("%q, %v", out, err)
	}
}

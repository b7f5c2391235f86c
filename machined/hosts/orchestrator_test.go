package hosts

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// TestReadClaims checks that ReadClaims reads only a regular file of limited size, because the
// directory belongs to a process with fewer rights. If the file or the directory does not exist,
// the error is fs.ErrNotExist: the controllers do not run on this machine.
func TestReadClaims(t *testing.T) {
	missing, empty := filepath.Join(t.TempDir(), "missing"), t.TempDir()
	for _, dir := range []string{missing, empty} {
		if _, err := ReadClaims(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without a file: %v", err)
		}
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		write func(file string) error
		want  string // part of the error
	}{
		{"a list", func(file string) error { return os.WriteFile(file, make([]byte, claim.MaxList), 0o600) }, ""},
		{"too long", func(file string) error { return os.WriteFile(file, make([]byte, claim.MaxList+1), 0o600) }, "at most 2097152 are taken"},
		{"a symbolic link", func(file string) error { return os.Symlink(other, file) }, "is not a plain file"},
		{"a pipe", func(file string) error { return unix.Mkfifo(file, 0o600) }, "is not a plain file"},
		{"a directory", func(file string) error { return os.Mkdir(file, 0o700) }, "is not a plain file"},
	} {
		dir := t.TempDir()
		if err := test.write(filepath.Join(dir, nodespec.ClaimsFile)); err != nil {
			t.Fatal(err)
		}
		text, err := ReadClaims(dir)
		if test.want == "" && (err != nil || len(text) != claim.MaxList) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %d bytes, %v", test.name, len(text), err)
		}
	}
}

// TestMatches checks the request by which the orchestrator evaluates an expression, and the
// decoding of its answer.
func TestMatches(t *testing.T) {
	for _, c := range []struct {
		answer string
		failed error
		want   bool
		err    string // a part of the error
	}{
		{`{"matches":true}`, nil, true, ""},
		{`{"matches":false}`, nil, false, ""},
		{`{"matches":false,"problem":"is neither true nor false, but int"}`, nil, false, "match: the expression is neither true nor false"},
		{`no`, nil, false, "match-host cannot be read"},
		{``, errors.New("killed"), false, "killed"},
	} {
		run := func(_ context.Context, uid uint32, command string, request any, _ ...*os.File) ([]byte, error) {
			r, ok := request.(nodespec.HostMatchRequest)
			if !ok || uid != paths.UserAPI || command != "match-host" || r.Expression != "host.cpus == 2" || string(r.Inventory) != `{"serial":"SN-1","cpus":2}` {
				t.Errorf("%d %s %+v", uid, command, request)
			}
			return []byte(c.answer), c.failed
		}
		got, err := Matches(t.Context(), run, "host.cpus == 2", inventory.Host{Serial: "SN-1", CPUs: 2})
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v", c.answer, got, err)
		}
	}
}

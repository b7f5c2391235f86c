package install

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// fakeOp is an operation that returns the given error.
type fakeOp struct {
	name string
	err  error
}

func (o fakeOp) String() string { return o.name }

func (o fakeOp) Do(context.Context) error { return o.err }

// TestRun checks that the machine reboots after a successful installation. After a failed
// operation, the installation ends and releases its lock (unlocked).
func TestRun(t *testing.T) {
	w := Want{Disk: Disk{Path: "/dev/vda"}, System: System{Version: "1.0.0"}}
	for _, c := range []struct {
		name     string
		ops      []reconcile.Op
		want     State
		reboots  []string
		unlocked bool
	}{
		{"success", []reconcile.Op{fakeOp{"a", nil}, fakeOp{"b", nil}}, State{Phase: Done, Disk: "/dev/vda"}, []string{"installed on /dev/vda"}, false},
		{"failure", []reconcile.Op{fakeOp{"a", errors.New("no")}, fakeOp{"b", nil}}, State{Phase: Failed, Disk: "/dev/vda", Reason: "cannot a: no"}, nil, true},
	} {
		var reboots []string
		unlocked := false
		m := New(Deps{Console: func(string) {}, Reboot: func(why string) { reboots = append(reboots, why) }})
		m.run(t.Context(), w, c.ops, func() { unlocked = true })
		if got, _ := m.State().Get(); got != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
		if !slices.Equal(reboots, c.reboots) || unlocked != c.unlocked || !m.Began() {
			t.Errorf("%s: reboots %q, unlocked %v", c.name, reboots, unlocked)
		}
	}
}

// TestBeginLocked checks that an installation does not start while another caller holds the lock.
func TestBeginLocked(t *testing.T) {
	m := New(Deps{Lock: func() (func(), bool) { return nil, false }})
	if err := m.Begin(Want{}, nil, "admin"); err == nil || !strings.HasPrefix(err.Error(), config.Refused) || m.Began() {
		t.Errorf("error %v, Began returns %v", err, m.Began())
	}
}

// TestReject checks that Reject prints a repeated reason once, and does not replace the state of an
// installation that has started.
func TestReject(t *testing.T) {
	var lines []string
	m := New(Deps{Console: func(line string) { lines = append(lines, line) }})
	for range 2 {
		m.Reject(errors.New("no disk"))
	}
	if got, _ := m.State().Get(); got != (State{Phase: Failed, Reason: "no disk"}) || !slices.Equal(lines, []string{"install: no disk"}) {
		t.Errorf("%+v, %q", got, lines)
	}
	started := State{Phase: Installing, Disk: "/dev/vda"}
	m.State().Set(started)
	m.Reject(errors.New("another"))
	if got, _ := m.State().Get(); got != started {
		t.Errorf("%+v", got)
	}
}

// TestUnattended checks that an unattended installation does not start without a configuration or
// before the machine key is read. An error of the installation is reported on the console.
func TestUnattended(t *testing.T) {
	var lines []string
	var key *pki.Leaf
	m := New(Deps{Identity: func() *pki.Leaf { return key }, Console: func(line string) { lines = append(lines, line) }})
	c := new(config.Config)
	m.Unattended(t.Context(), nil, nil, "")
	m.Unattended(t.Context(), c, nil, "medium cidata")
	if m.Began() || len(lines) != 0 {
		t.Errorf("%q", lines)
	}
	key = new(pki.Leaf)
	m.Unattended(t.Context(), c, nil, "medium cidata")
	if now, _ := m.State().Get(); now.Phase != Failed || len(lines) != 1 || !strings.Contains(lines[0], "select the disk of the installation") {
		t.Errorf("%+v, %q", now, lines)
	}
}

// TestCheckMatch checks that a wrong expression of a disk selector is a problem of its field in the
// configuration, and that CheckMatch returns other errors unchanged.
func TestCheckMatch(t *testing.T) {
	answer, failure := "", error(nil)
	m := New(Deps{Command: func(context.Context, uint32, string, any, ...*os.File) ([]byte, error) {
		return []byte(answer), failure
	}})
	c := new(config.Config)
	if err := m.CheckMatch(t.Context(), c); err != nil {
		t.Errorf("without a selector: %v", err)
	}
	c.Machine.Spec.Install = &config.Install{Disk: config.DiskSelector{Match: "x"}}
	answer = `{"matches": ["/dev/vda"]}`
	if err := m.CheckMatch(t.Context(), c); err != nil {
		t.Errorf("a correct expression: %v", err)
	}
	answer = `{"problem": "has no such variable"}`
	problems := config.Problems(nil)
	if err := m.CheckMatch(t.Context(), c); !errors.As(err, &problems) || problems[0].Field != config.MatchField {
		t.Errorf("a wrong expression: %v", err)
	}
	failure = errors.New("killed")
	if err := m.CheckMatch(t.Context(), c); !errors.Is(err, failure) {
		t.Errorf("a failed command: %v", err)
	}
}

package upgrade

import (
	"bytes"
	"cmp"
	"context"
	"debug/pe"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/slot"
)

// fakeDisruption records its calls. Its Confirm refuses an operation that names a version of
// Kubernetes, unless the operation is forced.
type fakeDisruption struct {
	calls []string
	held  bool
	// operation returns the name of the running operation; Return records this name.
	operation func() string
}

var errSkew = errors.New("upgrade refused: the kubelet would be newer")

func (f *fakeDisruption) Permit(_ context.Context, r disruption.Request) (func(), error) {
	f.calls = append(f.calls, "permit "+string(r.Operation)+" "+r.Kubernetes)
	return func() { f.calls = append(f.calls, "give back") }, nil
}

func (f *fakeDisruption) Confirm(_ context.Context, r disruption.Request) error {
	f.calls = append(f.calls, "confirm "+r.Kubernetes)
	if r.Kubernetes != "" && !r.Force {
		return errSkew
	}
	return nil
}

func (f *fakeDisruption) Held() bool { return f.held }

func (f *fakeDisruption) Return() bool {
	f.calls, f.held = append(f.calls, "return during "+f.operation()), false
	return true
}

// bootImageOf returns a boot image with an os-release section.
func bootImageOf(t *testing.T, osRelease string) []byte {
	t.Helper()
	var b bytes.Buffer
	b.Write(append(append([]byte("MZ"), make([]byte, 0x3a)...), 64, 0, 0, 0))
	section := pe.SectionHeader32{VirtualSize: uint32(len(osRelease)), SizeOfRawData: uint32(len(osRelease)), PointerToRawData: 512}
	copy(section.Name[:], ".osrel")
	for _, part := range []any{[]byte("PE\x00\x00"), pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: 1}, section} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return append(append(b.Bytes(), make([]byte, 512-b.Len())...), osRelease...)
}

// TestConfirmVersion checks that confirmVersion asks the cluster only about a bundle with another
// minor version of Kubernetes, and that abort returns the turn.
func TestConfirmVersion(t *testing.T) {
	for _, test := range []struct {
		osRelease string
		force     bool
		want      []string
		err       error
	}{
		{"ID=orlop\nORLOP_KUBERNETES_VERSION=v1.37.2\n", false, []string{"permit upgrade ", "confirm v1.37.2", "give back"}, errSkew},
		{"ID=orlop\nORLOP_KUBERNETES_VERSION=v1.37.2\n", true, []string{"permit upgrade ", "confirm v1.37.2", "give back"}, nil},
		{"ID=orlop\nORLOP_KUBERNETES_VERSION=v1.36.9\n", false, []string{"permit upgrade ", "give back"}, nil},
		{"ID=orlop\n", false, []string{"permit upgrade ", "give back"}, nil},
	} {
		m := newTestMachine(t, slot.Record{})
		cluster := &fakeDisruption{}
		m.Receiver.deps.Disruption = cluster
		m.Receiver.deps.Release = func() buildinfo.Release { return buildinfo.Release{Kubernetes: "v1.36.3"} }
		trust := receivedBundle(t, m.Receiver.deps.Files.Inbox, bootImageOf(t, test.osRelease))
		q := m.Receiver.ask(test.force, "dora")
		q.end() // returns no turn, because Permit was not called yet
		if err := q.permit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := m.Receiver.confirmVersion(t.Context(), Installer{Trust: trust}, q); !errors.Is(err, test.err) {
			t.Errorf("confirmVersion with %q: %v", test.osRelease, err)
		}
		m.Receiver.abort(false, errors.New("the operation has failed"), q)
		if !slices.Equal(cluster.calls, test.want) {
			t.Errorf("with %q, the calls are %q", test.osRelease, cluster.calls)
		}
	}
}

// TestConfirmFirmware checks that a bundle is refused before any write if the firmware would not
// start its boot image, also with force. The bundle stays in the inbox for another attempt.
func TestConfirmFirmware(t *testing.T) {
	for _, force := range []bool{false, true} {
		for _, test := range []struct {
			refuses string
			err     error
		}{{"", nil}, {"ID=orlop", errFirmware}} {
			m := newTestMachine(t, slot.Record{})
			m.Receiver.deps.Disk.Firmware = fakeFirmware{test.refuses}
			cluster := &fakeDisruption{}
			m.Receiver.deps.Disruption = cluster
			m.Receiver.deps.Release = func() buildinfo.Release { return buildinfo.Release{Kubernetes: "v1.37.2"} }
			in := m.Receiver.deps.Files.Inbox
			trust := receivedBundle(t, in, bootImageOf(t, "ID=orlop\nORLOP_KUBERNETES_VERSION=v1.37.2\n"))
			q := m.Receiver.ask(force, "dora")
			err := m.Receiver.confirmVersion(t.Context(), Installer{Trust: trust}, q)
			if !errors.Is(err, test.err) || errors.As(err, new(Refusal)) {
				t.Errorf("force %t, refuses %q: %v", force, test.refuses, err)
			}
			m.Receiver.abort(false, cmp.Or(err, errors.New("the operation has failed")), q)
			if _, err := os.Stat(in.file()); err != nil {
				t.Errorf("force %t, refuses %q: the bundle is gone: %v", force, test.refuses, err)
			}
			if len(m.steps) > 0 {
				t.Errorf("force %t, refuses %q: %q", force, test.refuses, m.steps)
			}
		}
	}
}

// TestConfirmUnnamed checks a bundle of a release from before levels existed: its boot image names
// no version of Kubernetes. The machine asks the cluster about its level, because this release
// would drop the etcd data of a machine without other control-plane machines.
func TestConfirmUnnamed(t *testing.T) {
	m := newTestMachine(t, slot.Record{})
	cluster := &fakeDisruption{}
	m.Receiver.deps.Disruption = cluster
	m.Receiver.deps.Release = func() buildinfo.Release { return buildinfo.Release{Kubernetes: "v1.37.2"} }
	trust := receivedBundle(t, m.Receiver.deps.Files.Inbox, bootImageOf(t, "ID=orlop\n"))
	q := m.Receiver.ask(false, "dora")
	if err := m.Receiver.confirmVersion(t.Context(), Installer{Trust: trust}, q); err != nil {
		t.Fatal(err)
	}
	if !q.Forgets || !slices.Equal(cluster.calls, []string{"confirm "}) {
		t.Errorf("the request is %+v, and the calls are %q", q.Request, cluster.calls)
	}
}

// receivedBundle stores a bundle with a boot image in the inbox, and returns the keys that its
// signature needs.
func receivedBundle(t *testing.T, in Inbox, uki []byte) bundle.Trust {
	t.Helper()
	return receivedBundleWith(t, in, uki, "root")
}

// receivedBundleWith is receivedBundle with the verity parameters of the root partition.
func receivedBundleWith(t *testing.T, in Inbox, uki []byte, root string) bundle.Trust {
	t.Helper()
	image := filepath.Join(t.TempDir(), "uki")
	if err := os.WriteFile(image, uki, 0o600); err != nil {
		t.Fatal(err)
	}
	source := bundle.Source{Version: "3.0.0", Profile: "test", Root: root, RootImage: image, UKI: image, SBOM: image, Packed: image, Time: time.Unix(0, 0)}
	envelope, key := seal(t, source)
	var all bytes.Buffer
	if err := bundle.Write(&all, source, envelope); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in.file(), all.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicPEM()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.ParseTrust(public)
	if err == nil {
		trust, err = trust.WithThreshold(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// TestCommitReturnsTurn checks that a commit returns the turn before the status shows the end of
// the upgrade (an operation is still shown when the turn is returned). If the commit fails, the
// machine retains the turn.
func TestCommitReturnsTurn(t *testing.T) {
	for _, test := range []struct {
		record slot.Record
		held   bool
		want   []string
		err    error
	}{
		{slot.Record{To: "2.0.0", Phase: slot.Committed}, true, []string{"return during return the turn of the control plane"}, nil},
		{slot.Record{To: "2.0.0", Phase: slot.Committed}, false, nil, nil},
		{onTrial, true, nil, ErrNoSlots}, // the entry cannot be renamed, so the commit fails
	} {
		m := newTestMachine(t, test.record)
		now := func() string { s, _ := m.Controller.State().Get(); return s.Operation }
		cluster := &fakeDisruption{held: test.held, operation: now}
		m.Controller.deps.Disruption = cluster
		if err := m.Controller.commit(t.Context(), slot.ChecksPassed{}); !errors.Is(err, test.err) {
			t.Errorf("commit with the record %+v: %v", test.record, err)
		}
		if !slices.Equal(cluster.calls, test.want) || now() != "" {
			t.Errorf("%+v: %q, then %q", test.record, cluster.calls, now())
		}
	}
}

// fakeDrain is a drain that records its calls.
type fakeDrain struct {
	wanted bool
	err    error
	calls  *[]string
}

func (d *fakeDrain) Wanted() bool { return d.wanted }

func (d *fakeDrain) Drain(context.Context, disruption.Operation, string) error {
	*d.calls = append(*d.calls, "drain")
	return d.err
}

func (d *fakeDrain) Undo(disruption.Operation, string) { *d.calls = append(*d.calls, "uncordon") }

// TestAskAfterDrain checks a rollback and an upgrade that the cluster refuses after the drain. The
// node is schedulable again, the turn is returned, and the operation does not take place. The
// caller gets the error of the cluster without a prefix.
func TestAskAfterDrain(t *testing.T) {
	for name, test := range map[string]struct {
		kubernetes string
		blocked    bool // the drain fails
		want       []string
		says       string
	}{
		"permitted":       {"", false, []string{"permit rollback ", "drain", "confirm "}, ""},
		"refused":         {"v1.35.1", false, []string{"permit rollback v1.35.1", "drain", "confirm v1.35.1", "uncordon", "give back"}, errSkew.Error()},
		"the drain fails": {"", true, []string{"permit rollback ", "drain", "give back"}, "rollback refused: drain not complete within 1m0s: pod web"},
	} {
		m := newTestMachine(t, slot.Record{})
		cluster := &fakeDisruption{}
		m.Controller.deps.Disruption, m.Controller.deps.Running = cluster, t.Context()
		drain := &fakeDrain{wanted: true, calls: &cluster.calls}
		if test.blocked {
			drain.err = errors.New("drain not complete within 1m0s: pod web")
		}
		m.Controller.deps.Node = Node{Drain: drain}
		q := &disruptionRequest{with: cluster, Request: disruption.Request{Operation: disruption.Rollback, Kubernetes: test.kubernetes}}
		err := m.Controller.drainFor(t.Context(), q)
		if got := fmt.Sprint(err); got != test.says && (err != nil || test.says != "") || !slices.Equal(cluster.calls, test.want) {
			t.Errorf("%s: %v, the calls are %q", name, err, cluster.calls)
		}
	}

	uncordoned := false
	i := Installer{Begin: func(string, int64) {}, Uncordon: func() { uncordoned = true }, Confirm: func(context.Context) error {
		return &disruption.Refusal{Operation: disruption.Upgrade, Reason: "b is down", Remedy: "start it"}
	}}
	err := i.do(t.Context(), []operation{{"ask the cluster", 0, func() error { return i.confirmDrained(t.Context()) }}})
	if err == nil || err.Error() != "upgrade refused: b is down; start it, or use --force" || !uncordoned {
		t.Errorf("a refused upgrade: %v, the node is schedulable: %v", err, uncordoned)
	}
}

// TestCheckUnlock checks that a boot image after which the partitions would stay locked is refused
// unless the operator forces it. The check opens the boot image itself.
func TestCheckUnlock(t *testing.T) {
	unread := errors.New("the event log cannot be read")
	opened := 0
	open := func() (*os.File, error) { opened++; return nil, nil }
	for _, c := range []struct {
		name  string
		check func(context.Context, func() (*os.File, error)) error
		force bool
		want  string // a part of the error; empty: none
	}{
		{"a machine without a check", nil, false, ""},
		{"an image that opens them", func(context.Context, func() (*os.File, error)) error { return nil }, false, ""},
		{"an image that does not", func(context.Context, func() (*os.File, error)) error { return diskkey.ErrImage }, false, "would stay locked"},
		{"an error of the check", func(context.Context, func() (*os.File, error)) error { return unread }, false, "it is not known whether"},
		{"by force", func(context.Context, func() (*os.File, error)) error { return unread }, true, ""},
	} {
		err := Disk{CheckUnlock: c.check}.checkUnlock(t.Context(), open, c.force)
		if (err != nil) != (c.want != "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "--force ignores this check")) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if opened > 0 {
		t.Error("a machine without encrypted partitions copies the boot image")
	}
}

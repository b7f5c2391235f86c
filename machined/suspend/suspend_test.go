package suspend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// fakeKubernetes has at most one object, with UID 1, and records the steps.
type fakeKubernetes struct {
	object string
	stuck  error // the error of a removal; nil if removals succeed
	lost   bool  // true if a removal succeeds, but returns an error
	steps  []string
}

func (f *fakeKubernetes) step(_ context.Context, o nodespec.SuspendRequest) (nodespec.SuspendResult, error) {
	f.steps = append(f.steps, o.Action)
	switch {
	case o.Action == nodespec.SuspendRestore && f.object != "":
		return nodespec.SuspendResult{}, errors.New("there is another one")
	case o.Action == nodespec.SuspendRestore:
		f.object = string(o.Object)
	case f.object == "":
		return nodespec.SuspendResult{}, errors.New("not found")
	case o.Action == nodespec.SuspendRemove && f.lost:
		f.object = ""
		return nodespec.SuspendResult{}, errors.New("no answer")
	case o.Action == nodespec.SuspendRemove && f.stuck != nil:
		return nodespec.SuspendResult{}, f.stuck
	case o.Action == nodespec.SuspendRemove:
		f.object = ""
	}
	return nodespec.SuspendResult{UID: "1", Object: json.RawMessage(f.object)}, nil
}

// TestSuspend checks that an object is stored before it is removed, that it is restored unchanged,
// and that a failed step does not lose it.
func TestSuspend(t *testing.T) {
	const kind, name = "apiservice", "v1.example.org"
	ctx, at := t.Context(), time.Unix(1000, 0)
	s := New(Deps{Dir: filepath.Join(t.TempDir(), "suspended")})
	kept := func(want int) []object {
		t.Helper()
		all, _, err := s.store.list()
		if err != nil || len(all) != want {
			t.Fatalf("%d objects are stored, %v; want %d", len(all), err, want)
		}
		return all
	}
	k := &fakeKubernetes{}
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); err == nil {
		t.Error("an object that does not exist was suspended")
	}
	kept(0)

	k.object, k.stuck = `{"a":1}`, errors.New("the server is down")
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); !errors.Is(err, k.stuck) {
		t.Errorf("a removal that fails: %v", err)
	}
	kept(0)

	k.stuck, k.lost = nil, true
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); err == nil {
		t.Error("a removal without an answer counts as a success")
	}
	if got := kept(1)[0]; string(got.Object) != `{"a":1}` || got.By != "alice" || !got.At.Equal(at) {
		t.Errorf("the stored copy is %+v", got)
	}
	if _, err := s.resume(ctx, kind, name, false, k.step); err != nil || k.object != `{"a":1}` {
		t.Errorf("after the resume, the object is %q, %v", k.object, err)
	}
	kept(0)

	k.lost = false
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); err != nil || k.object != "" {
		t.Errorf("after the suspension, the object is %q, %v; want none", k.object, err)
	}
	// The removal of another object with the same name fails: the stored copy of the first object
	// stays. A failed restore also keeps the copy.
	k.object, k.stuck = `{"b":2}`, errors.New("the server is down")
	if _, err := s.suspend(ctx, kind, name, "bob", at, k.step); err == nil {
		t.Error("an object was suspended although its removal failed")
	}
	if _, err := s.resume(ctx, kind, name, false, k.step); err == nil {
		t.Error("an object was resumed although another object has its name")
	}
	if got := kept(1)[0]; string(got.Object) != `{"a":1}` || got.By != "alice" {
		t.Errorf("the stored copy is now %+v", got)
	}
	before := len(k.steps)
	if _, err := s.resume(ctx, kind, name, true, k.step); err != nil || len(k.steps) != before {
		t.Errorf("the removal of the stored copy performed the steps %v, %v", k.steps[before:], err)
	}
	kept(0)
	if _, err := s.resume(ctx, kind, name, false, k.step); status.Code(err) != codes.NotFound {
		t.Errorf("a resume without a stored copy: %v", err)
	}
	s.mu.Lock()
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); status.Code(err) != codes.Aborted {
		t.Errorf("a suspend while another one runs: %v", err)
	}
}

// TestSuspendedStore checks the limits and the permissions of the store, and that a damaged file
// does not hide the other objects.
func TestSuspendedStore(t *testing.T) {
	s := store{filepath.Join(t.TempDir(), "suspended")}
	content := json.RawMessage(`{}`)
	for i := range maxSuspended {
		if err := s.put(object{Kind: "apiservice", Name: fmt.Sprint("v", i), Object: content}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.put(object{Kind: "apiservice", Name: "more", Object: content}); err == nil {
		t.Error("the store accepts more than maxSuspended objects")
	}
	if err := s.put(object{Kind: "apiservice", Name: "v1", By: "again", Object: content}); err != nil {
		t.Errorf("another version of a stored object: %v", err)
	}
	large := json.RawMessage(`"` + strings.Repeat("x", maxSuspendedSize) + `"`)
	if err := s.put(object{Kind: "apiservice", Name: "v1", Object: large}); err == nil {
		t.Error("the store accepts an object that is too large")
	}
	path := s.file("apiservice", "v2")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of an object: %v, %v", info, err)
	}
	if err := os.WriteFile(path, []byte("half of a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, damaged, err := s.list(); err != nil || len(all) != maxSuspended-1 || len(damaged) != 1 || all[1].Name != "v1" || all[1].By != "again" {
		t.Errorf("%d objects are readable, damaged %v, %v", len(all), damaged, err)
	}
	if err := s.put(object{Kind: "apiservice", Name: "more", Object: content}); err == nil {
		t.Error("the store accepts another object, because a damaged file does not count")
	}
	var events []string
	m := New(Deps{Dir: s.dir, Event: func(_, message string) { events = append(events, message) }})
	for range 2 {
		if all, err := m.List(); err != nil || len(all.Objects) != maxSuspended-1 {
			t.Errorf("List returns %d objects, %v", len(all.Objects), err)
		}
	}
	if len(events) != 1 || !strings.Contains(events[0], filepath.Base(path)) {
		t.Errorf("events: %q", events)
	}
	if _, err := m.resume(t.Context(), "apiservice", "v2", false, nil); err == nil || !strings.Contains(err.Error(), "--discard") {
		t.Errorf("a resume of a damaged copy: %v", err)
	}
	if o, err := m.resume(t.Context(), "apiservice", "v2", true, nil); err != nil || o.Name != "v2" {
		t.Errorf("the removal of a damaged copy: %v, %v", o, err)
	}
	if name := filepath.Base(s.file("validatingadmissionpolicybinding", strings.Repeat("x", 253))); len(name) > 255 {
		t.Errorf("the name of a file has %d bytes, more than 255", len(name))
	}
}

// TestSuspendTarget checks which kinds and names of objects are rejected before the first step.
func TestSuspendTarget(t *testing.T) {
	for _, c := range []struct {
		kind, name, want string
	}{
		{"ValidatingWebhookConfiguration", "policy", "validatingwebhookconfiguration"},
		{"crd", "things.example.org", "customresourcedefinition"},
		{"pod", "x", ""}, {"apiservice", "", ""}, {"apiservice", "../x", ""}, {"apiservice", "A", ""}, {"apiservice", "a/b", ""},
		{"apiservice", strings.Repeat("x", 254), ""}, {"apiservice", "x\n", ""}, {"", "x", ""},
	} {
		got, err := checkTarget(c.kind, c.name)
		if got != c.want || (status.Code(err) == codes.InvalidArgument) != (c.want == "") {
			t.Errorf("%q %q: %q, %v", c.kind, c.name, got, err)
		}
	}
}

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
			t.Fatalf("%d are kept, %v; want %d", len(all), err, want)
		}
		return all
	}
	k := &fakeKubernetes{}
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); err == nil {
		t.Error("what is not there was suspended")
	}
	kept(0)

	k.object, k.stuck = `{"a":1}`, errors.New("the server is down")
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); !errors.Is(err, k.stuck) {
		t.Errorf("%v", err)
	}
	kept(0)

	k.stuck, k.lost = nil, true
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); err == nil {
		t.Error("an answer that did not come is no success")
	}
	if got := kept(1)[0]; string(got.Object) != `{"a":1}` || got.By != "alice" || !got.At.Equal(at) {
		t.Errorf("%+v", got)
	}
	if _, err := s.resume(ctx, kind, name, false, k.step); err != nil || k.object != `{"a":1}` {
		t.Errorf("%q, %v", k.object, err)
	}
	kept(0)

	k.lost = false
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); err != nil || k.object != "" {
		t.Errorf("%q, %v", k.object, err)
	}
	// The removal of another object with the same name fails: the stored copy of the first object
	// stays. A failed restore also keeps the copy.
	k.object, k.stuck = `{"b":2}`, errors.New("the server is down")
	if _, err := s.suspend(ctx, kind, name, "bob", at, k.step); err == nil {
		t.Error("suspended although it could not be removed")
	}
	if _, err := s.resume(ctx, kind, name, false, k.step); err == nil {
		t.Error("resumed although another one is there")
	}
	if got := kept(1)[0]; string(got.Object) != `{"a":1}` || got.By != "alice" {
		t.Errorf("%+v", got)
	}
	before := len(k.steps)
	if _, err := s.resume(ctx, kind, name, true, k.step); err != nil || len(k.steps) != before {
		t.Errorf("forgetting asked for %v, %v", k.steps[before:], err)
	}
	kept(0)
	if _, err := s.resume(ctx, kind, name, false, k.step); status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
	s.mu.Lock()
	if _, err := s.suspend(ctx, kind, name, "alice", at, k.step); status.Code(err) != codes.Aborted {
		t.Errorf("two at a time: %v", err)
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
		t.Error("one more than is kept")
	}
	if err := s.put(object{Kind: "apiservice", Name: "v1", By: "again", Object: content}); err != nil {
		t.Errorf("one that is kept already: %v", err)
	}
	large := json.RawMessage(`"` + strings.Repeat("x", maxSuspendedSize) + `"`)
	if err := s.put(object{Kind: "apiservice", Name: "v1", Object: large}); err == nil {
		t.Error("a large one")
	}
	path := s.file("apiservice", "v2")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.WriteFile(path, []byte("half of a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, damaged, err := s.list(); err != nil || len(all) != maxSuspended-1 || len(damaged) != 1 || all[1].Name != "v1" || all[1].By != "again" {
		t.Errorf("%d, %v, %v", len(all), damaged, err)
	}
	if err := s.put(object{Kind: "apiservice", Name: "more", Object: content}); err == nil {
		t.Error("a damaged file makes room for another object")
	}
	var events []string
	m := New(Deps{Dir: s.dir, Event: func(_, message string) { events = append(events, message) }})
	for range 2 {
		if all, err := m.List(); err != nil || len(all.Objects) != maxSuspended-1 {
			t.Errorf("%d, %v", len(all.Objects), err)
		}
	}
	if len(events) != 1 || !strings.Contains(events[0], filepath.Base(path)) {
		t.Errorf("events: %q", events)
	}
	if _, err := m.resume(t.Context(), "apiservice", "v2", false, nil); err == nil || !strings.Contains(err.Error(), "--discard") {
		t.Errorf("a damaged copy: %v", err)
	}
	if o, err := m.resume(t.Context(), "apiservice", "v2", true, nil); err != nil || o.Name != "v2" {
		t.Errorf("%v, %v", o, err)
	}
	if name := filepath.Base(s.file("validatingadmissionpolicybinding", strings.Repeat("x", 253))); len(name) > 255 {
		t.Errorf("%d bytes are no file's name", len(name))
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

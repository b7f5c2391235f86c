package main

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
)

// configured is the configuration that a machine has.
func configured(a clusterAPI) *config.Config {
	now, _ := a.m.config.Get()
	return now.config
}

// fakeStream is a stream of which only the context is used.
type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s fakeStream) Context() context.Context { return s.ctx }

// TestCallPanics: a call that panics fails, alone. It is recorded, with the caller and apart from
// that with its stack; it counts in the health, and a version on trial is left for it.
func TestCallPanics(t *testing.T) {
	a := controlPlane(t)
	m := a.m
	m.program, m.desk, m.calls = cell.New(programState{}), newDesk(), recording(t, audit.DefaultSize).calls
	panics.OnPanic(m.panicked)
	t.Cleanup(func() { panics.OnPanic(nil) })
	if health := (&api.HealthResponse{Healthy: true}); true {
		if programCheck(health, programState{}); !health.Healthy || len(health.Checks) != 0 || leftFor("2", programState{}) != "" {
			t.Errorf("before anything has panicked: %v", health)
		}
	}

	g := guard{m: m, audited: apid.Mutates()}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(apid.MetadataSubject, "CN=admin", apid.MetadataRole, "admin"))
	var nothing *config.Config
	_, err := g.unary(ctx, &api.ResetRequest{}, &grpc.UnaryServerInfo{FullMethod: api.Machine_Reboot_FullMethodName}, func(context.Context, any) (any, error) {
		return nothing.Machine.Metadata.Name, nil // as where a configuration is read that has gone
	})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "nil pointer") {
		t.Errorf("a call: %v", err)
	}
	err = g.stream(nil, fakeStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: api.Machine_Version_FullMethodName}, func(any, grpc.ServerStream) error { panic("a fake") })
	if status.Code(err) != codes.Internal {
		t.Errorf("a stream: %v", err)
	}
	// What a handler has begun, and waits for.
	m.reads = make(chan struct{}, 1)
	err = g.do(ctx, api.Machine_Version_FullMethodName, m.looksAt(ctx, "/a", func(context.Context) error { panic("a fake below") }))
	if status.Code(err) != codes.Internal {
		t.Errorf("a goroutine of a call: %v", err)
	}
	select {
	case m.reads <- struct{}{}:
	case <-time.After(10 * time.Second):
		t.Error("its place is not given back")
	}
	if err := g.do(ctx, api.Machine_Version_FullMethodName, nil); err != nil {
		t.Errorf("the next call: %v", err)
	}

	now, _ := m.program.Get()
	health := &api.HealthResponse{Healthy: true}
	programCheck(health, now)
	if why := leftFor("2", now); !strings.HasPrefix(why, "version 2 did not prove itself: reading files: the program failed: ") {
		t.Errorf("a version on trial is left for %q", why)
	}
	if now.Panics != 3 || !health.Healthy || len(health.Checks) != 1 || !strings.Contains(health.Checks[0].Detail, "failed 3 times") {
		t.Errorf("%+v, %v", now, health)
	}
	now.Resting = []string{"snapshots"}
	if programCheck(health, now); health.Healthy {
		t.Error("a task rests, and the machine is well")
	}
	stack := false
	for _, e := range m.events.after(0) {
		stack = stack || e.kind == "stack" && strings.Contains(e.message, "TestCallPanics")
	}
	if !stack {
		t.Error("no event says where it was")
	}
	got := brief(entries(t, m.calls.changes, ""))
	if strings.Count(got, "nobody panic Internal") != 3 || !strings.Contains(got, "admin Machine/Reboot Internal") {
		t.Errorf("on record: %s", got)
	}
}

// TestPanicsAreBounded: however many there are, the events and the record hold more than them.
func TestPanicsAreBounded(t *testing.T) {
	m := &machine{events: newEventLog(), program: cell.New(programState{})}
	for range 1000 {
		m.panicked(&panics.Error{Where: "a", Value: "b", Stack: strings.Repeat("line\n", 1000)})
	}
	if n := len(m.events.after(0)); n > maxPanicsRecorded*(stackLines+1) {
		t.Errorf("%d events", n)
	}
	if now, _ := m.program.Get(); now.Panics != 1000 {
		t.Errorf("%d are counted", now.Panics)
	}
}

// TestResting: a task that rests is in the state, and not after it.
func TestResting(t *testing.T) {
	m := &machine{program: cell.New(programState{})}
	k := m.keeper()
	k.BackingOff("a", true)
	k.BackingOff("b", true)
	k.BackingOff("a", false)
	if now, _ := m.program.Get(); !slices.Equal(now.Resting, []string{"b"}) {
		t.Errorf("%v", now.Resting)
	}
}

// TestConfigurationGoes: a call whose configuration goes between two of its steps (a trial that
// ends in one that cannot be read) is answered, and ends nothing.
func TestConfigurationGoes(t *testing.T) {
	a := controlPlane(t)
	whole, _ := a.m.config.Get()
	_, request := newRequest(t)
	ctx := from(t, operator, "10.0.0.5:1")
	stop, flapping := make(chan struct{}), sync.WaitGroup{}
	flapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				a.m.config.Set(applied{problem: "it cannot be read"})
				a.m.config.Set(whole)
			}
		}
	})
	for range 300 {
		_, _ = a.Invite(ctx, &api.InviteRequest{Name: "w1", Request: request})
		_, _ = a.Remove(ctx, &api.RemoveMemberRequest{Name: "nobody"})
		_, _ = a.Deny(ctx, &api.DenyRequest{Name: "w1"})
		_, _ = a.Roll(ctx, &api.RollRequest{})
		a.m.lookForGone(t.Context())
		_ = a.m.leave()
	}
	close(stop)
	flapping.Wait()
}

// bare are the functions that may begin a goroutine whose panic nothing recovers, with the reason.
var bare = map[string]string{
	"main":         "the boot, whose steps are guarded one by one, and the watchdog, whose end resets the machine",
	"newMachine":   "the reaper: without it no process ends",
	"feedWatchdog": "its end resets the machine",
	"goDown":       "its end resets the machine, which goes down in any case",
}

// TestGoroutines: no goroutine of PID 1 begins without somebody who recovers its panics, but those
// above.
func TestGoroutines(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				begun := goroutine(n)
				if begun == nil || guarded(begun) {
					return true
				}
				if bare[f.Name.Name] == "" {
					t.Errorf("%s: %s begins a goroutine whose panic ends the machine; begin it with package panics", set.Position(n.Pos()), f.Name.Name)
				}
				used[f.Name.Name] = true
				return true
			})
		}
	}
	for name := range bare {
		if !used[name] {
			t.Errorf("%s is an exception that nothing needs", name)
		}
	}
}

// goroutine is what a statement runs on a goroutine of its own, or nil: by go, or in a
// sync.WaitGroup.
func goroutine(n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.GoStmt:
		return n.Call
	case *ast.CallExpr:
		f, ok := n.Fun.(*ast.SelectorExpr)
		if !ok || f.Sel.Name != "Go" || len(n.Args) != 1 {
			return nil // panics.Go and Keeper.Go take more
		}
		return n.Args[0]
	}
	return nil
}

// guarded tells whether what runs on a goroutine goes through package panics: by itself, or in the
// function that it calls (fetch, install).
func guarded(begun ast.Node) bool {
	found := false
	ast.Inspect(begun, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		from, _ := f.X.(*ast.Ident)
		switch {
		case from != nil && from.Name == "panics":
			found = true
		case f.Sel.Name == "fetch", f.Sel.Name == "install", f.Sel.Name == "Run", f.Sel.Name == "Wait":
			// they guard what they do; a keeper; the wait for a group whose members are guarded
			found = true
		}
		return true
	})
	return found
}

package machineobject

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/disruption/repair"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// fakeServer is a fake API server with a single OrlopMachine, named w1.
type fakeServer struct {
	t *testing.T

	mu      sync.Mutex
	object  machineapi.OrlopMachine
	version int
	changed chan struct{}
}

func newFakeServer(t *testing.T) *fakeServer {
	s := &fakeServer{t: t, changed: make(chan struct{})}
	s.change(func(m *machineapi.OrlopMachine) {
		m.TypeMeta = metav1.TypeMeta{APIVersion: machineapi.GroupVersion.String(), Kind: "OrlopMachine"}
		m.Name, m.Namespace = "w1", machineapi.Namespace
	})
	return s
}

// change lets edit change the object, gives the object a new resource version and wakes all
// watches.
func (s *fakeServer) change(edit func(*machineapi.OrlopMachine)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(&s.object)
	s.version++
	s.object.ResourceVersion = strconv.Itoa(s.version)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeServer) get() (machineapi.OrlopMachine, int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.object.DeepCopy(), s.version, s.changed
}

// ServeHTTP serves list, watch and the update of the status for the object w1 only. It rejects all
// other requests, as an API server does if the RBAC rules name only this object.
func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const path = "/apis/infrastructure.cluster.x-k8s.io/v1alpha1/namespaces/orlop-machines/orlopmachines"
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodPut && r.URL.Path == path+"/w1/status":
		s.put(w, r)
	case r.Method != http.MethodGet || r.URL.Path != path || query.Get("fieldSelector") != "metadata.name=w1":
		s.t.Errorf("unexpected request %s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusForbidden)
	case query.Get("watch") == "":
		object, version, _ := s.get()
		list := machineapi.OrlopMachineList{TypeMeta: metav1.TypeMeta{APIVersion: machineapi.GroupVersion.String(), Kind: "OrlopMachineList"}, Items: []machineapi.OrlopMachine{object}}
		list.ResourceVersion = strconv.Itoa(version)
		_ = json.NewEncoder(w).Encode(list)
	default:
		s.watch(w, r)
	}
}

func (s *fakeServer) watch(w http.ResponseWriter, r *http.Request) {
	seen, initial := 0, r.URL.Query().Get("sendInitialEvents") == "true"
	if !initial {
		seen, _ = strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	}
	for ; ; initial = false {
		object, version, changed := s.get()
		if version > seen {
			seen = version
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": object})
		}
		if initial {
			mark := machineapi.OrlopMachine{TypeMeta: object.TypeMeta}
			mark.ResourceVersion, mark.Annotations = object.ResourceVersion, map[string]string{metav1.InitialEventsAnnotationKey: "true"}
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": mark})
		}
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (s *fakeServer) put(w http.ResponseWriter, r *http.Request) {
	var next machineapi.OrlopMachine
	if err := json.NewDecoder(r.Body).Decode(&next); err != nil {
		s.t.Error(err)
	}
	if have, _, _ := s.get(); next.ResourceVersion != have.ResourceVersion {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict})
		return
	}
	s.change(func(m *machineapi.OrlopMachine) { m.Status = next.Status })
	object, _, _ := s.get()
	_ = json.NewEncoder(w).Encode(object)
}

// await waits until good returns true for the object. If ctx ends first, it fails the test with a
// message that names the event.
func (s *fakeServer) await(ctx context.Context, event string, good func(machineapi.OrlopMachine) bool) {
	s.t.Helper()
	for {
		object, _, changed := s.get()
		if good(object) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			s.t.Fatalf("this did not happen: %s: %+v", event, object.Status)
		}
	}
}

// fakeMachined is a fake of machined. It accepts each request if refusal is empty. Otherwise it
// rejects each request with the text in refusal.
type fakeMachined struct {
	states *cell.Cell[*api.ObjectState]
	steps  chan string // "STEP: PHASE", with the phase of status.repair at the request
	// Each request as "VERSION|IMAGE|PEERS|STATUS REASON", with the status and the reason of the
	// condition Updating at the time of the request.
	requests chan string
	refusal  *cell.Cell[string]
	server   *fakeServer
	objects  *cell.Cell[*api.ReportedObject] // the last report
}

// Report implements api.MachineObjectClient.
func (m *fakeMachined) Report(_ context.Context, r *api.ReportObjectRequest, _ ...grpc.CallOption) (*api.ReportObjectResponse, error) {
	m.objects.Set(r.Object)
	return &api.ReportObjectResponse{}, nil
}

// Repair implements api.MachineObjectClient.
func (m *fakeMachined) Repair(_ context.Context, r *api.RepairRequest, _ ...grpc.CallOption) (*api.RepairResponse, error) {
	object, _, _ := m.server.get()
	phase := ""
	if answer := object.Status.Repair; answer != nil {
		phase = answer.Phase
	}
	m.steps <- r.Step + ": " + phase
	if why, _ := m.refusal.Get(); why != "" {
		return nil, status.Error(codes.FailedPrecondition, why)
	}
	return &api.RepairResponse{}, nil
}

// ChangeRelease implements api.MachineObjectClient.
func (m *fakeMachined) ChangeRelease(_ context.Context, r *api.ChangeReleaseRequest, _ ...grpc.CallOption) (*api.ChangeReleaseResponse, error) {
	object, _, _ := m.server.get()
	reason := ""
	for _, c := range object.Status.Conditions {
		if c.Type == machineapi.ConditionUpdating {
			reason = string(c.Status) + " " + c.Reason
		}
	}
	m.requests <- strings.Join([]string{r.Version, r.Image, strings.Join(r.Peers, ","), reason}, "|")
	if why, _ := m.refusal.Get(); why != "" {
		return nil, status.Error(codes.FailedPrecondition, why)
	}
	m.states.Set(&api.ObjectState{Version: "1.0.0", Upgrade: &api.UpgradeStatus{Phase: "writing", From: "1.0.0", To: r.Version}})
	return &api.ChangeReleaseResponse{}, nil
}

// Watch implements api.MachineObjectClient.
func (m *fakeMachined) Watch(ctx context.Context, _ *api.WatchObjectRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[api.ObjectState], error) {
	return &fakeStream{ctx: ctx, states: m.states.Watch()}, nil
}

type fakeStream struct {
	grpc.ClientStream
	ctx    context.Context
	states *cell.Watcher[*api.ObjectState]
}

func (s *fakeStream) Recv() (*api.ObjectState, error) {
	state, _, err := s.states.Next(s.ctx)
	return state, err
}

// TestRun runs the component with a fake API server and a fake machined. The component writes the
// state of the machine to the status of the object. It requests a release, or a step of a repair,
// from machined only after it has announced the request in the status.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	server := newFakeServer(t)
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	t.Cleanup(listener.CloseClientConnections)
	client, err := newObjects(&rest.Config{Host: listener.URL})
	if err != nil {
		t.Fatal(err)
	}
	fake := &fakeMachined{states: cell.New(&api.ObjectState{Version: "1.0.0", Kubernetes: "v1.37.2", Problem: "kubelet: not ready"}), requests: make(chan string, 8), steps: make(chan string, 8), refusal: cell.New("another has the turn"), server: server, objects: cell.New[*api.ReportedObject](nil)}
	spec := nodespec.Spec{}
	spec.Node.Name, spec.Node.IPs = "w1", []netip.Addr{netip.MustParseAddr("10.0.0.21")}
	a := &agent{name: "w1", addresses: addresses(spec), informer: client.informer("w1"), write: client.writeStatus, machined: newMachined(fake), leads: func(context.Context) (bool, error) { return true, nil }, now: time.Now, changed: cell.NewSignal()}
	ended := make(chan error, 1)
	details := cell.New("")
	go func() { ended <- a.run(ctx, details.Set) }()

	server.await(ctx, "the component writes the first status", func(m machineapi.OrlopMachine) bool {
		return m.Status.Release != nil && m.Status.Release.Version == "1.0.0" && len(m.Status.Addresses) == 2 && m.Status.EtcdLeader && len(m.Status.Conditions) == 4
	})
	permit := &machineapi.Permit{Release: machineapi.ReleaseReference{Version: "2.0.0", Image: "r/o@sha256:0"}, Peers: []string{"10.0.0.11"}, Expires: metav1.NewTime(time.Now().Add(time.Hour))}
	server.change(func(m *machineapi.OrlopMachine) { m.Generation++; m.Spec.Permit = permit })
	if got := <-fake.requests; got != "2.0.0|r/o@sha256:0|10.0.0.11|True Starting" {
		t.Errorf("machined received the request %s", got)
	}
	server.await(ctx, "the status says that the request was refused", func(m machineapi.OrlopMachine) bool {
		c := updatingOf(m)
		return c.Status == metav1.ConditionFalse && c.Reason == machineapi.ReasonRefused && strings.Contains(c.Message, "the turn")
	})
	if _, err := cell.Wait(ctx, details, func(s string) bool { return strings.Contains(s, "the turn") }); err != nil {
		t.Error(err)
	}
	if _, err := cell.Wait(ctx, fake.objects, func(o *api.ReportedObject) bool {
		return o.GetWanted() == "2.0.0" && strings.Contains(o.GetMessage(), "the turn")
	}); err != nil {
		t.Errorf("machined did not receive the report about the object: %v", err)
	}
	fake.refusal.Set("")
	a.set(attempt{}) // as if the delay after the rejection had passed
	server.change(func(m *machineapi.OrlopMachine) { m.Generation++ })
	<-fake.requests
	server.await(ctx, "the status says that the bundle is being written", func(m machineapi.OrlopMachine) bool { return updatingOf(m).Reason == reasonWriting })
	fake.states.Set(&api.ObjectState{Version: "2.0.0", Upgrade: &api.UpgradeStatus{Phase: "committed", From: "1.0.0", To: "2.0.0"}})
	server.await(ctx, "the status says that the version was committed", func(m machineapi.OrlopMachine) bool {
		return m.Status.Release.Version == "2.0.0" && updatingOf(m).Reason == reasonIdle && m.Status.ObservedGeneration == 2
	})
	fake.refusal.Set("another has the turn")
	server.change(func(m *machineapi.OrlopMachine) {
		m.Spec.Repair = &machineapi.RepairOrder{Step: string(repair.Reboot), Attempt: 1, Given: metav1.NewTime(time.Now().Truncate(time.Second))}
	})
	if got := <-fake.steps; got != "Reboot: Started" {
		t.Errorf("machined received the request %s", got)
	}
	server.await(ctx, "the status says that the step was refused", func(m machineapi.OrlopMachine) bool {
		return m.Status.Repair.Phase == machineapi.RepairRefused && strings.Contains(m.Status.Repair.Message, "the turn")
	})
	server.change(func(m *machineapi.OrlopMachine) { m.Spec.Repair = nil })
	server.await(ctx, "the status of the repair is removed", func(m machineapi.OrlopMachine) bool { return m.Status.Repair == nil })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func updatingOf(m machineapi.OrlopMachine) metav1.Condition {
	for _, c := range m.Status.Conditions {
		if c.Type == machineapi.ConditionUpdating {
			return c
		}
	}
	return metav1.Condition{}
}

// TestTexts checks that texts for the status contain no control characters, that joined errors are
// separated on one line, and that long texts are shortened.
func TestTexts(t *testing.T) {
	if got, want := head("version 2.0.0 was not found: machine a\nno image\x1b[31m"), "version 2.0.0 was not found: machine a; no image?[31m"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := tail([]string{"one\r\ntwo", "\x1b[31mthree\tfour"}), "one; two\n?[31mthree four"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := head(strings.Repeat("é", maxText)); len(got) > maxText || !strings.HasSuffix(got, "é…") {
		t.Errorf("%d bytes, end %q", len(got), got[len(got)-8:])
	}
}

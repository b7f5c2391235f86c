package api

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestServiceOf checks that serviceOf returns the service of a component, and an empty name for the
// name of a service.
func TestServiceOf(t *testing.T) {
	all := []supervise.Status{
		{Name: "containerd"},
		{Name: "orchestrator-node", Components: []supervise.Component{{Name: "kubelet"}, {Name: "orchestrator-node"}, {}}},
	}
	for name, want := range map[string]string{"kubelet": "orchestrator-node", "orchestrator-node": "", "containerd": "", "": "", "nginx": ""} {
		if got := serviceOf(all, name); got != want {
			t.Errorf("%q is a part of %q, want %q", name, got, want)
		}
	}
}

// componentOwners are components and their services. The kubelet runs in the process of its
// service, and kube-controller-manager in a child of the process of its service.
var componentOwners = map[string]string{"kubelet": nodespec.ServiceNode, "kube-controller-manager": nodespec.ServiceControllers}

// withComponents returns a manager with the services of componentOwners and their components. The
// executable of the services does not exist, so no process starts. Each service has a line in its
// log.
func withComponents(t *testing.T) *supervise.Manager {
	t.Helper()
	m := supervise.NewManager(supervise.Config{Reaper: supervise.NewReaper(nil)})
	t.Cleanup(func() { _ = m.Shutdown(t.Context()) })
	var services []supervise.Service
	for _, name := range componentOwners {
		services = append(services, supervise.Service{
			Name: name, Process: supervise.Spec{Args: []string{"/does/not/exist"}}, Backoff: supervise.Backoff{First: time.Hour, Max: time.Hour},
		})
	}
	if err := m.Set(services); err != nil {
		t.Fatal(err)
	}
	var all []supervise.Status
	for component, name := range componentOwners {
		log, err := m.Log(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Write([]byte("a line of " + name + "\n")); err != nil {
			t.Fatal(err)
		}
		all = append(all, supervise.Status{Name: name, State: supervise.BackingOff, Components: []supervise.Component{{Name: component}}})
	}
	m.Status().Set(all)
	return m
}

// lineStream records the texts of lines.
type lineStream struct {
	grpc.ServerStreamingServer[api.LogLine]
	texts []string
}

func (s *lineStream) Send(l *api.LogLine) error {
	s.texts = append(s.texts, l.Text)
	return nil
}

// TestComponentLog checks that a request for the log of a component returns a line with the name of
// its service, and then the log of that service.
func TestComponentLog(t *testing.T) {
	s := logService{services: withComponents(t)}
	for component, owner := range componentOwners {
		stream := &lineStream{}
		if err := s.Service(&api.ServiceLogRequest{Service: component, Tail: 1}, stream); err != nil {
			t.Fatal(err)
		}
		want := []string{"(" + component + " is a component of service " + owner + ": these are the lines of all its components)", "a line of " + owner}
		if !slices.Equal(stream.texts, want) {
			t.Errorf("%s: %q, want %q", component, stream.texts, want)
		}
	}
	if err := s.Service(&api.ServiceLogRequest{Service: "nginx"}, &lineStream{}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
}

// TestComponentRestart checks that the restart of a component is rejected with the name of its
// service, and that the error makes no statement on processes: some components have their own
// process (docs/decisions/0054-system-requests.md).
func TestComponentRestart(t *testing.T) {
	var events []string
	s := processService{services: withComponents(t), event: func(_, _, message string) { events = append(events, message) }}
	for component, owner := range componentOwners {
		for _, kill := range []bool{false, true} {
			_, err := s.Restart(t.Context(), &api.RestartServiceRequest{Name: component, Kill: kill})
			want := "service: " + component + " is a component of service " + owner + " and does not restart alone; " +
				"restart the service with all its components: orlopctl service restart " + owner
			if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != want {
				t.Errorf("%s, kill %t: %v, want %s", component, kill, err, want)
			}
		}
	}
	_, err := s.Restart(t.Context(), &api.RestartServiceRequest{Name: "nginx"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), nodespec.ServiceNode) {
		t.Errorf("an unknown service: %v", err)
	}
	if len(events) > 0 {
		t.Errorf("rejected, but reported as done: %q", events)
	}
}

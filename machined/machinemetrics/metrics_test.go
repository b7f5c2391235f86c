package machinemetrics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/supervise"
)

func sample() State {
	at := time.Unix(1790000000, 0)
	return State{
		Version: "1.2.0", Kubernetes: "v1.37.2",
		Health: &api.HealthResponse{Checks: []*api.HealthCheck{{Name: "containerd", Ok: true}, {Name: "etcd", Detail: "no \"leader\""}}},
		Services: []supervise.Status{
			{Name: "containerd", State: supervise.Running, Restarts: 2},
			{Name: "orchestrator-api", State: supervise.Starting, Components: []supervise.Component{{Name: "etcd"}, {Name: "kube-apiserver", Ready: true}}},
		},
		Upgrade: &api.UpgradeStatus{Phase: "trial", To: "1.2.0"}, Clock: Clock{Synced: true, Offset: 2 * time.Millisecond},
		Certificates: []Certificate{
			{"/run/orlop/kube/node/kubelet.crt", "CN=system:node:m1,O=system:nodes", at.Add(time.Hour)},
			{"/run/orlop/kube/node/ca.crt", "CN=kubernetes", at.Add(2 * time.Hour)}, {"/run/orlop/kube/node/ca.crt", "CN=kubernetes", at},
		},
	}
}

// TestFamilies compares the metrics of a machine, and their names, with golden files.
func TestFamilies(t *testing.T) {
	var text bytes.Buffer
	f := Families(sample())
	if err := f.Write(&text); err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, text.String(), "metrics.txt")
	golden.Assert(t, strings.Join(f.Names(), "\n")+"\n", "names.txt")
	if err := Families(State{}).Write(io.Discard); err != nil { // a new machine
		t.Error(err)
	}
}

// TestHandler checks the answers of the HTTP handler: metrics, an unknown path, an error of the
// state, and a request beyond the maximum of concurrent reads.
func TestHandler(t *testing.T) {
	get := func(h http.Handler, path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	good := Handler(func(context.Context) (State, error) { return sample(), nil })
	if status, text := get(good, "/machine"); status != http.StatusOK || !strings.Contains(text, `orlop_upgrade_phase{phase="trial",version="1.2.0"} 1`) {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := get(good, "/"); status != http.StatusNotFound {
		t.Errorf("another path: %d", status)
	}
	bad := Handler(func(context.Context) (State, error) { return State{}, errors.New("STATE does not answer") })
	if status, text := get(bad, "/machine"); status != http.StatusServiceUnavailable || !strings.Contains(text, "STATE does not answer") {
		t.Errorf("%d %s", status, text)
	}
	begun, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	slow := Handler(func(context.Context) (State, error) { begun <- struct{}{}; <-end; return sample(), nil })
	for range maxReads {
		go func() { get(slow, "/machine"); done <- struct{}{} }()
		<-begun
	}
	if status, _ := get(slow, "/machine"); status != http.StatusServiceUnavailable {
		t.Errorf("a request beyond the maximum: status %d", status)
	}
	close(end)
	for range maxReads {
		<-done
	}
}

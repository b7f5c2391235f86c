package canary

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/orlop-os/orlop/orchestrator/dirs"
)

// runtime is a fake of the part of containerd that the canary uses.
type runtime struct {
	cri.UnimplementedRuntimeServiceServer
	sandboxes []string // with the canary's label
	fails     error    // the error of RunPodSandbox
	ip        string
	state     cri.PodSandboxState
	log       []string
}

func (r *runtime) ListPodSandbox(_ context.Context, q *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	out := &cri.ListPodSandboxResponse{}
	if q.Filter.LabelSelector[label] == "true" {
		for _, s := range r.sandboxes {
			of := &cri.PodSandboxMetadata{Uid: uid}
			if s == "tenant" {
				of.Uid = "0a1b2c3d-0000-4000-8000-000000000001"
			}
			out.Items = append(out.Items, &cri.PodSandbox{Id: s, Metadata: of})
		}
	}
	return out, nil
}

func (r *runtime) RunPodSandbox(context.Context, *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	r.log = append(r.log, "run")
	if r.fails != nil {
		return nil, r.fails
	}
	r.sandboxes = append(r.sandboxes, "new")
	return &cri.RunPodSandboxResponse{PodSandboxId: "new"}, nil
}

func (r *runtime) PodSandboxStatus(context.Context, *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{State: r.state, Network: &cri.PodSandboxNetworkStatus{Ip: r.ip}}}, nil
}

func (r *runtime) StopPodSandbox(_ context.Context, q *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	r.log = append(r.log, "stop "+q.PodSandboxId)
	return &cri.StopPodSandboxResponse{}, nil
}

func (r *runtime) RemovePodSandbox(_ context.Context, q *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	r.log = append(r.log, "remove "+q.PodSandboxId)
	r.sandboxes = slices.DeleteFunc(r.sandboxes, func(s string) bool { return s == q.PodSandboxId })
	return &cri.RemovePodSandboxResponse{}, nil
}

// TestRun checks the calls of the canary, its error, and the sandboxes that exist after its end.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		what    string
		runtime runtime
		log     string
		err     string
		left    string
	}{
		{"a sandbox that runs", runtime{ip: "10.0.0.2"}, "run, stop new, remove new", "", ""},
		{"a sandbox of an interrupted canary", runtime{ip: "10.0.0.2", sandboxes: []string{"old"}}, "stop old, remove old, run, stop new, remove new", "", ""},
		{"a pod with the canary's label", runtime{ip: "10.0.0.2", sandboxes: []string{"tenant"}}, "run, stop new, remove new", "", "tenant"},
		{"the sandbox cannot be created", runtime{fails: net.ErrClosed}, "run", "cannot create a pod sandbox", ""},
		{"no address", runtime{}, "run, stop new, remove new", "has no address", ""},
		{"the sandbox ends immediately", runtime{ip: "10.0.0.2", state: cri.PodSandboxState_SANDBOX_NOTREADY}, "run, stop new, remove new", "SANDBOX_NOTREADY", ""},
	} {
		dirs := dirs.Dirs{ContainerdSocket: t.TempDir() + "/s"}
		l, err := net.Listen("unix", dirs.ContainerdSocket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		cri.RegisterRuntimeServiceServer(server, &c.runtime)
		go server.Serve(l)
		err = Run(t.Context(), dirs)
		server.Stop()
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v", c.what, err)
		}
		if got := strings.Join(c.runtime.log, ", "); got != c.log || strings.Join(c.runtime.sandboxes, "") != c.left {
			t.Errorf("%s: %s; left %v", c.what, got, c.runtime.sandboxes)
		}
	}
}

package clusterhealth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// reference returns the configuration of a control-plane machine.
func reference(t *testing.T) *config.Config {
	t.Helper()
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return c
}

// peer answers the calls of a collector without a network.
type peer func(*api.ReportMachineRequest) (*api.ReportMachineResponse, error)

func (p peer) Invoke(_ context.Context, _ string, request, answer any, _ ...grpc.CallOption) error {
	got, err := p(request.(*api.ReportMachineRequest))
	if err == nil {
		proto.Merge(answer.(proto.Message), got)
	}
	return err
}

func (peer) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

// collector returns a collector of machine m1, and the number of its calls to others.
func collector(t *testing.T, others []Machine, call func(context.Context, Machine) (peer, error)) (*Collector, *atomic.Int32) {
	c, calls := reference(t), new(atomic.Int32)
	c.Machine.Metadata.Name = "m1"
	return New(Deps{
		Config:  func() *config.Config { return c },
		Address: func(*config.Config) string { return "10.0.0.11" },
		Others:  func(*config.Config) []Machine { return others },
		Call: func(ctx context.Context, m Machine, do func(*client.Client) error) error {
			calls.Add(1)
			p, err := call(ctx, m)
			if err != nil {
				return err
			}
			return do(client.Over(p))
		},
		State: func(context.Context) (State, error) {
			return State{Config: c, Version: "0.2.0", Kubernetes: "v1.37.2", Health: &api.HealthResponse{Healthy: true}}, nil
		},
		Etcd: func(context.Context) (*api.EtcdStatusResponse, error) {
			return &api.EtcdStatusResponse{Leader: "1f", Members: []*api.EtcdMember{member("m1", "10.0.0.11", "")}}, nil
		},
		Now: func() time.Time { return noon },
	}), calls
}

// TestPartialAnswer checks that the collector answers even if some machines do not answer before
// their deadline. The answer then contains the reason for each of them.
func TestPartialAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := collector(t, []Machine{
			{Name: "hangs", Address: "10.0.0.21"}, {Name: "off", Address: "10.0.0.22"}, {Name: "old", Address: "10.0.0.23"}, {Name: "panics", Address: "10.0.0.24"}, {Name: "answers", Address: "10.0.0.25"},
		}, func(ctx context.Context, m Machine) (peer, error) {
			switch m.Name {
			case "hangs":
				<-ctx.Done()
				return nil, ctx.Err()
			case "off":
				return nil, fmt.Errorf("machine %s: cannot connect: %w: no answer", m.Address, client.ErrUnreachable)
			case "old":
				return func(*api.ReportMachineRequest) (*api.ReportMachineResponse, error) {
					return nil, status.Error(codes.PermissionDenied, "ReportMachine: cannot call: "+api.UnknownMethod)
				}, nil
			case "panics":
				return nil, errors.New("it has panicked")
			}
			return func(r *api.ReportMachineRequest) (*api.ReportMachineResponse, error) {
				return &api.ReportMachineResponse{Name: m.Name, Version: "0.2.0", Health: &api.HealthResponse{Healthy: true}, Fields: config.ClusterDigests(reference(t), r.DigestKey)}, nil
			}, nil
		})
		got, err := c.ClusterHealth(t.Context(), &api.ClusterHealthRequest{MachineTimeout: durationpb.New(50 * time.Millisecond)})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"m1": "", "answers": "", "hangs": "it has not answered within 50ms", "off": "it cannot be reached: machine 10.0.0.22", "old": "its version of Orlop OS has no such call", "panics": "it has panicked",
		}
		if got.Etcd.Leader != "m1" {
			t.Errorf("etcd: %v", got.Etcd)
		}
		if got.Healthy || len(got.Machines) != len(want) || len(got.Problems) != 4 {
			t.Errorf("healthy %t, %d machines, problems %v", got.Healthy, len(got.Machines), got.Problems)
		}
		for _, m := range got.Machines {
			if !strings.HasPrefix(m.Problem, want[m.Name]) || (m.Problem == "") != (want[m.Name] == "") {
				t.Errorf("%s: problem %q, want %q", m.Name, m.Problem, want[m.Name])
			}
		}
	})
}

// TestEtcdDoesNotAnswer checks that an error of etcd appears as a problem in the answer, and that
// the call succeeds.
func TestEtcdDoesNotAnswer(t *testing.T) {
	c, _ := collector(t, nil, nil)
	c.deps.Etcd = func(context.Context) (*api.EtcdStatusResponse, error) {
		return nil, status.Error(codes.Unavailable, "it starts")
	}
	got, err := c.ClusterHealth(t.Context(), &api.ClusterHealthRequest{})
	if err != nil || got.Healthy || len(got.Problems) != 1 || got.Problems[0].Reason != "its etcd does not answer: it starts" {
		t.Errorf("the answer is %v, %v; want the error of etcd as its only problem", got, err)
	}
}

// TestSharedAnswer checks that calls in quick succession share an answer: each machine is called
// only once.
func TestSharedAnswer(t *testing.T) {
	c, calls := collector(t, []Machine{w1}, func(context.Context, Machine) (peer, error) { return nil, errors.New("no") })
	for range 5 {
		if _, err := c.ClusterHealth(t.Context(), &api.ClusterHealthRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls of the machine, want 1", n)
	}
	c.ended, c.began = c.ended.Add(-shareTime), c.began.Add(-shareTime)
	if _, err := c.ClusterHealth(t.Context(), &api.ClusterHealthRequest{}); err != nil || calls.Load() != 2 {
		t.Errorf("after the shared answer has expired: %d calls of the machine, want 2; %v", calls.Load(), err)
	}
	// The answer for a caller that has left is not shared: it can lack machines.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	c.ended = time.Time{}
	if _, err := c.ClusterHealth(gone, &api.ClusterHealthRequest{}); status.Code(err) != codes.Canceled || !c.ended.IsZero() {
		t.Errorf("a caller that has left: %v, and the answer is shared since %v", err, c.ended)
	}
}

// TestPacedCollections checks that calls with changing timeouts, and calls of callers that leave at
// once, do not call the machines more often than calls that share an answer.
func TestPacedCollections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leave := func() {}
		c, calls := collector(t, []Machine{w1}, func(context.Context, Machine) (peer, error) {
			leave()
			return nil, errors.New("no")
		})
		began := time.Now()
		for i := range 4 {
			if _, err := c.ClusterHealth(t.Context(), &api.ClusterHealthRequest{MachineTimeout: durationpb.New(time.Duration(1+i%2) * time.Second)}); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			leave = cancel
			if _, err := c.ClusterHealth(ctx, &api.ClusterHealthRequest{}); status.Code(err) != codes.Canceled {
				t.Error(err)
			}
		}
		if n, least := calls.Load(), 7*shareTime; n != 8 || time.Since(began) < least {
			t.Errorf("%d calls in %v, want 8 in at least %v", n, time.Since(began), least)
		}
		// a caller that leaves during the wait does not wait longer
		ctx, cancel := context.WithTimeout(t.Context(), shareTime/2)
		defer cancel()
		before := time.Now()
		if _, err := c.ClusterHealth(ctx, &api.ClusterHealthRequest{}); status.Code(err) != codes.DeadlineExceeded || time.Since(before) != shareTime/2 || calls.Load() != 8 {
			t.Errorf("the caller gets %v after %v, and there were %d calls", err, time.Since(before), calls.Load())
		}
	})
}

// TestRejectedCalls checks the callers and the requests that are rejected.
func TestRejectedCalls(t *testing.T) {
	c, _ := collector(t, nil, nil)
	for _, d := range []time.Duration{-time.Second, time.Minute} {
		if _, err := c.ClusterHealth(t.Context(), &api.ClusterHealthRequest{MachineTimeout: durationpb.New(d)}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", d, err)
		}
	}
	worker := config.New("w1", config.RoleWorker)
	for _, now := range []*config.Config{nil, worker} {
		c.deps.Config = func() *config.Config { return now }
		if _, err := c.ClusterHealth(t.Context(), &api.ClusterHealthRequest{}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "call a control-plane machine") {
			t.Error(err)
		}
	}
	for _, by := range []api.Caller{{Role: "admin", Name: "a"}, {Role: "reader", Name: "r"}, {Role: "machine", Name: "w1", Ticket: "1a"}} {
		if _, err := c.ReportMachine(t.Context(), by, &api.ReportMachineRequest{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v: %v", by, err)
		}
	}
	machine := api.Caller{Role: "machine", Name: "m2"}
	if _, err := c.ReportMachine(t.Context(), machine, &api.ReportMachineRequest{DigestKey: []byte("short")}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// TestReport checks that a report contains no log and no value of the Cluster document. It contains
// digests of the values only if the request has a key.
func TestReport(t *testing.T) {
	c, _ := collector(t, nil, nil)
	machine := api.Caller{Role: "machine", Name: "m2"}
	c.deps.State = func(context.Context) (State, error) {
		return State{
			Config: reference(t), TrialEnd: noon, Version: "0.2.0",
			Health:  &api.HealthResponse{Checks: []*api.HealthCheck{{Name: "configuration", Ok: true}, {Name: "addons", Ok: true, Detail: "no add-ons"}, {Name: "etcd", Detail: "down"}}},
			Upgrade: &api.UpgradeStatus{To: "0.3.0", Log: []string{"a line"}, Operation: "write", Done: 1, Total: 2},
		}, nil
	}
	plain, err := c.ReportMachine(t.Context(), machine, &api.ReportMachineRequest{})
	if err != nil || len(plain.Fields) > 0 || len(plain.Health.Checks) != 2 || len(plain.Upgrade.Log) > 0 || plain.Upgrade.Total != 0 || plain.TrialDeadline == nil {
		t.Errorf("a report without digests: %v, %v", plain, err)
	}
	with, err := c.ReportMachine(t.Context(), machine, &api.ReportMachineRequest{DigestKey: make([]byte, digestKeySize)})
	if err != nil || len(with.Fields) < 20 {
		t.Errorf("a report with digests has %d fields, %v", len(with.Fields), err)
	}
	if n := proto.Size(with); n > maxReport/8 {
		t.Errorf("a report has %d bytes", n)
	}
}

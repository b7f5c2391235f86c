package machinetest

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// ClusterHealth returns the health of a cluster of three machines. Its first response has problems,
// and later responses have none. The name of the machine that serves the call can
// select another behavior: "lonely" is a worker, which rejects the call; on "late", each call but
// the first fails as if the timeout of the caller had expired. In a network of machines, ofNetwork
// makes the response.
func (s *clusterService) ClusterHealth(_ context.Context, r *api.ClusterHealthRequest) (*api.ClusterHealthResponse, error) {
	c := s.f.Current()
	if c == nil || c.Cluster == nil || c.Machine.Metadata.Name == "lonely" {
		return nil, status.Error(codes.FailedPrecondition, "this machine is not a control-plane machine, so it does not know the others; call a control-plane machine")
	}
	if t := r.MachineTimeout.AsDuration(); t > 20*time.Second {
		return nil, status.Errorf(codes.InvalidArgument, "machine_timeout %v: out of range", t)
	}
	if s.f.network != nil {
		return s.ofNetwork(c), nil
	}
	s.f.mu.Lock()
	s.answers++
	first := s.answers == 1
	s.f.mu.Unlock()
	if !first && c.Machine.Metadata.Name == "late" {
		return nil, status.FromContextError(context.DeadlineExceeded).Err()
	}
	machine := func(name, address, role string) *api.ClusterMachine {
		return &api.ClusterMachine{Name: name, Address: address, Role: role, Version: "1.2.3", Kubernetes: "v1.37.2", Ready: true, CertificateExpiry: timestamppb.New(now.AsTime().AddDate(0, 2, 0))}
	}
	out := &api.ClusterHealthResponse{
		Healthy: !first, Cluster: c.Cluster.Metadata.Name, Machine: "m1", At: now, Addons: "2 of 2 add-ons are ready",
		Machines: []*api.ClusterMachine{machine("m1", "10.0.0.11", "controlplane"), machine("m2", "10.0.0.12", "controlplane"), machine("w1", "10.0.0.21", "worker")},
		Etcd:     &api.ClusterEtcd{Leader: "m1", Members: []*api.EtcdMember{{Id: "1", Name: "m1"}, {Id: "2", Name: "m2"}}},
		Notes:    []*api.ClusterFinding{{Machine: "m1", Subject: "trial", Reason: "its configuration is on trial until 2026-05-04T03:04:01Z", Remedy: "`orlopctl confirm-config -n 10.0.0.11` keeps it"}},
	}
	out.Machines[2].Wanted, out.Machines[2].Message = "1.2.4", "another machine has the turn"
	if first {
		out.Machines[1] = &api.ClusterMachine{Name: "m2", Address: "10.0.0.12", Role: "controlplane", Problem: "it cannot be reached:\x1b[31m no answer"}
		out.Etcd.Members[1].Problem = "no answer"
		out.Problems = []*api.ClusterFinding{
			{Subject: "etcd", Reason: "etcd tolerates no further failure: 1 of 2 members are down", Remedy: "start or replace them before any other work"},
			{Machine: "m2", Subject: "reachability", Reason: "it cannot be reached:\x1b[31m no answer", Remedy: "start it"},
		}
	}
	return out, nil
}

// ofNetwork returns the health of the cluster of this machine in a network. The cluster consists of
// all machines of the network that have the same machine CA. All of them are healthy.
func (s *clusterService) ofNetwork(own *config.Config) *api.ClusterHealthResponse {
	out := &api.ClusterHealthResponse{Healthy: true, Cluster: own.Cluster.Metadata.Name, Machine: own.Machine.Metadata.Name, At: now, Etcd: &api.ClusterEtcd{Leader: "m1"}}
	members := s.f.network.members()
	for _, address := range slices.Sorted(maps.Keys(members)) {
		if c := members[address]; c.Cluster.Spec.PKI.Machine.Cert.PEM() == own.Cluster.Spec.PKI.Machine.Cert.PEM() {
			out.Machines = append(out.Machines, &api.ClusterMachine{Name: c.Machine.Metadata.Name, Address: address, Role: string(c.Machine.Spec.Role), Version: "1.2.3", Kubernetes: "v1.37.2", Ready: true})
		}
	}
	return out
}

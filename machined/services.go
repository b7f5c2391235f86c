package main

import (
	"time"

	"github.com/orlop-os/orlop/pkg/cgroup"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Names of the services, as the API shows them.
const (
	serviceApid        = "apid"
	serviceContainerd  = "containerd"
	serviceKubeAPI     = "orchestrator-api"
	serviceControllers = "orchestrator-controllers"
	serviceNode        = "orchestrator-node"
)

// group is where the system's own processes live. It has memory and CPU reserved (see
// machined/host), so that no workload can starve them; pods live in /kubepods beside it.
const group = "/orlop/"

// path is the PATH of programs that start others: containerd (shim, runc), the kubelet (mount) and
// the service proxy (nft).
const path = "PATH=/usr/bin:/usr/sbin"

const mib = 1 << 20

// profileSocket is where a service that is one of the system's own programs gives profiles of
// itself.
func profileSocket(service string) string { return paths.Profiles + "/" + service + ".sock" }

// apidPort is where apid answers.
const apidPort = paths.PortApid

// door is apid: always there, configured or not.
func door() supervise.Service {
	return supervise.Service{
		Name: serviceApid,
		Args: []string{"/usr/bin/apid"},
		// or Go would want more threads than PidsMax on large machines
		Env:          []string{"GOMEMLIMIT=112MiB", "GOGC=50", "GOMAXPROCS=4"},
		UID:          paths.UserApid,
		GID:          paths.UserApid,
		NoNewPrivs:   true,
		Cgroup:       group + serviceApid,
		Limits:       cgroup.Limits{MemoryMax: 160 * mib, MemoryMin: 16 * mib, CPUWeight: 200, PidsMax: 64},
		OOMScoreAdj:  -998,
		Profile:      profileSocket(serviceApid),
		Ready:        supervise.Probe{Notify: true},
		StartTimeout: 30 * time.Second,
		GracePeriod:  5 * time.Second,
	}
}

// componentsGrace is how long a process of several components may take to stop: two in a row that
// hang (orchestrator/process), and the rest.
const componentsGrace = 20 * time.Second

// kubernetes are the services of a node. All are started at once and wait for each other inside,
// because what each does before it needs another takes most of its start.
func kubernetes(controlPlane bool) []supervise.Service {
	list := []supervise.Service{{
		Name:   serviceContainerd,
		Args:   []string{paths.Containerd, "--config", paths.ContainerdConfig},
		Env:    []string{path},
		Cgroup: group + serviceContainerd,
		// Shims are children of containerd's group and outlive it, so the group has no limit that
		// could kill pods.
		Limits:        cgroup.Limits{MemoryMin: 64 * mib, CPUWeight: 200},
		LeaveChildren: true,
		OOMScoreAdj:   -999,
		Ready:         supervise.Probe{Unix: paths.ContainerdSocket},
		StartTimeout:  60 * time.Second,
	}}
	if controlPlane {
		list = append(list, supervise.Service{
			Name:         serviceKubeAPI,
			Args:         []string{paths.Orchestrator, "api"},
			UID:          paths.UserAPI,
			GID:          paths.UserAPI,
			NoNewPrivs:   true,
			Cgroup:       group + serviceKubeAPI,
			Limits:       cgroup.Limits{MemoryMin: 256 * mib, CPUWeight: 800},
			OOMScoreAdj:  -997,
			Profile:      profileSocket(serviceKubeAPI),
			Ready:        supervise.Probe{Notify: true},
			StartTimeout: 5 * time.Minute,
			GracePeriod:  componentsGrace,
		}, supervise.Service{
			Name:         serviceControllers,
			Args:         []string{paths.Orchestrator, "controllers"},
			UID:          paths.UserControllers,
			GID:          paths.UserControllers,
			NoNewPrivs:   true,
			Cgroup:       group + serviceControllers,
			Limits:       cgroup.Limits{MemoryMin: 64 * mib, CPUWeight: 100},
			OOMScoreAdj:  -996,
			Profile:      profileSocket(serviceControllers),
			Ready:        supervise.Probe{Notify: true},
			StartTimeout: 5 * time.Minute,
			GracePeriod:  componentsGrace,
		})
	}
	return append(list, supervise.Service{
		Name:        serviceNode,
		DependsOn:   []string{serviceContainerd},
		Args:        []string{paths.Orchestrator, "node"},
		Env:         []string{path},
		Cgroup:      group + serviceNode,
		Limits:      cgroup.Limits{MemoryMin: 64 * mib, CPUWeight: 200},
		OOMScoreAdj: -999,
		Profile:     profileSocket(serviceNode),
		Ready:       supervise.Probe{Notify: true},
		GracePeriod: componentsGrace,
		// its readiness includes the Node's, which needs the control plane, elsewhere perhaps
		StartTimeout: 10 * time.Minute,
		// mount(8) and nft(8) end by themselves; what is mounted for pods stays.
		LeaveChildren: true,
	})
}

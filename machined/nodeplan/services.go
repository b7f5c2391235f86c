package nodeplan

import (
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// group is the control group of the system's own services. It has reserved memory and CPU (see
// machined/host), so that no workload can starve them; pods are in /kubepods beside it.
const group = cgroup.System + "/"

// path is the PATH of services that start other programs: containerd (shim, runc), the kubelet
// (mount) and the service proxy (nft).
const path = "PATH=/usr/bin:/usr/sbin"

// collectorOff keeps Go's garbage collector off until the program sets it (process.HeapLimiter):
// before that, an orchestrator makes 9 MiB of permanent objects, for which the collector would run
// four times and take a quarter of the processor time.
const collectorOff = "GOGC=off"

const mib = 1 << 20

// profileSocket returns the socket on which a service that is a program of the system serves its
// profiles.
func profileSocket(service string) string { return paths.Profiles + "/" + service + ".sock" }

// Apid is the service apid, which runs with and without a configuration.
func Apid() supervise.Service {
	return supervise.Service{
		Name: nodespec.ServiceApid,
		Process: supervise.Spec{
			Args: []string{"/usr/bin/apid"},
			// Without GOMAXPROCS Go would need more threads than PidsMax on large machines.
			Env:         []string{"GOMEMLIMIT=112MiB", "GOGC=50", "GOMAXPROCS=4"},
			UID:         paths.UserApid,
			GID:         paths.UserApid,
			NoNewPrivs:  true,
			OOMScoreAdj: new(-998),
		},
		Cgroup:       group + nodespec.ServiceApid,
		Limits:       cgroup.Limits{MemoryMax: 160 * mib, MemoryMin: 16 * mib, CPUWeight: 200, PidsMax: 64},
		Profile:      profileSocket(nodespec.ServiceApid),
		Ready:        supervise.Probe{Notify: true},
		StartTimeout: 30 * time.Second,
		GracePeriod:  5 * time.Second,
	}
}

// Metricsd is the service that serves the metrics of the machine (package metricsd), with
// Machine.spec.metrics only.
func Metricsd() supervise.Service {
	return supervise.Service{
		Name: nodespec.ServiceMetrics,
		Process: supervise.Spec{
			Args:        []string{paths.Metricsd},
			Env:         []string{"GOMEMLIMIT=48MiB", "GOGC=50", "GOMAXPROCS=2"},
			UID:         paths.UserMetrics,
			GID:         paths.UserMetrics,
			NoNewPrivs:  true,
			OOMScoreAdj: new(-100),
		},
		Cgroup:       group + nodespec.ServiceMetrics,
		Limits:       cgroup.Limits{MemoryMax: 80 * mib, CPUWeight: 50, PidsMax: 64},
		Profile:      profileSocket(nodespec.ServiceMetrics),
		Ready:        supervise.Probe{Notify: true},
		StartTimeout: 30 * time.Second,
		GracePeriod:  5 * time.Second,
	}
}

// Extensions returns the services of the active extensions, which run with and without a
// configuration, as apid does. They are confined as the services of the system are: a user of their
// own, only listed capabilities, no new privileges, and hard limits.
func Extensions(active []extension.Statement) (list []supervise.Service) {
	for _, e := range active {
		for _, s := range e.Services {
			env := []string{path}
			if s.State {
				env = append(env, "STATE_DIRECTORY="+ExtensionState(s))
			}
			list = append(list, supervise.Service{
				Name: s.ServiceName(),
				Process: supervise.Spec{
					Args: s.Args, Env: env, UID: s.User, GID: s.User, Capabilities: s.CapabilityNumbers(), NoNewPrivs: true, OOMScoreAdj: new(0),
				},
				Cgroup: group + s.ServiceName(),
				Limits: cgroup.Limits{MemoryMax: s.Memory, CPUWeight: 100, PidsMax: s.Processes},
			})
		}
	}
	return list
}

// ExtensionState returns the directory on DATA of a service of an extension.
func ExtensionState(s extension.Service) string { return paths.ExtensionState + "/" + s.Name }

// componentsGracePeriod is the time for a process of several components to stop: two components in
// a row that hang (orchestrator/process), and the others.
const componentsGracePeriod = 20 * time.Second

// Kubernetes returns the services of a node. All start at once, except that orchestrator-node
// starts after containerd, and wait for each other inside, because most of their start needs no
// other service.
func Kubernetes(controlPlane bool) []supervise.Service {
	list := []supervise.Service{{
		Name: nodespec.ServiceContainerd,
		Process: supervise.Spec{
			Args:        []string{paths.Containerd, "--config", paths.ContainerdConfig},
			Env:         []string{path},
			OOMScoreAdj: new(-999),
		},
		Cgroup: group + nodespec.ServiceContainerd,
		// Shims are children in containerd's group and outlive it, so the group has no limit that
		// could kill pods.
		Limits:        cgroup.Limits{MemoryMin: 64 * mib, CPUWeight: 200},
		LeaveChildren: true,
		Ready:         supervise.Probe{Unix: paths.ContainerdSocket},
		StartTimeout:  60 * time.Second,
	}}
	if controlPlane {
		list = append(list, controlPlaneServices()...)
	}
	return append(list, supervise.Service{
		Name:      nodespec.ServiceNode,
		DependsOn: []string{nodespec.ServiceContainerd},
		Process: supervise.Spec{
			Args:        []string{paths.Orchestrator, "node"},
			Env:         []string{path, collectorOff},
			OOMScoreAdj: new(-999),
		},
		Cgroup:      group + nodespec.ServiceNode,
		Limits:      cgroup.Limits{MemoryMin: 64 * mib, CPUWeight: 200},
		Profile:     profileSocket(nodespec.ServiceNode),
		Metrics:     nodespec.MetricsSocket(nodespec.ServiceNode),
		Ready:       supervise.Probe{Notify: true},
		GracePeriod: componentsGracePeriod,
		// Its readiness includes the Node object, which needs a control plane, perhaps on another
		// machine.
		StartTimeout: 10 * time.Minute,
		// mount(8) and nft(8) end by themselves; mounts of pods stay.
		LeaveChildren: true,
	})
}

// OfNode reports whether a service is of a node, and can use the parts of DATA. apid and the
// services of extensions run without a node.
func OfNode(s supervise.Service) bool {
	return slices.ContainsFunc(Kubernetes(true), func(k supervise.Service) bool { return k.Name == s.Name })
}

// controlPlaneServices returns the services that only control-plane machines have.
func controlPlaneServices() []supervise.Service {
	return []supervise.Service{{
		Name: nodespec.ServiceAPI,
		Process: supervise.Spec{
			Args:        []string{paths.Orchestrator, "api"},
			Env:         []string{collectorOff},
			UID:         paths.UserAPI,
			GID:         paths.UserAPI,
			NoNewPrivs:  true,
			OOMScoreAdj: new(-997),
		},
		Cgroup:       group + nodespec.ServiceAPI,
		Limits:       cgroup.Limits{MemoryMin: 256 * mib, CPUWeight: 800},
		Profile:      profileSocket(nodespec.ServiceAPI),
		Metrics:      nodespec.MetricsSocket(nodespec.ServiceAPI),
		Ready:        supervise.Probe{Notify: true},
		StartTimeout: 5 * time.Minute,
		GracePeriod:  componentsGracePeriod,
	}, {
		Name: nodespec.ServiceControllers,
		Process: supervise.Spec{
			Args:        []string{paths.Orchestrator, "controllers"},
			Env:         []string{collectorOff},
			UID:         paths.UserControllers,
			GID:         paths.UserControllers,
			NoNewPrivs:  true,
			OOMScoreAdj: new(-996),
		},
		Cgroup:       group + nodespec.ServiceControllers,
		Limits:       cgroup.Limits{MemoryMin: 64 * mib, CPUWeight: 100},
		Profile:      profileSocket(nodespec.ServiceControllers),
		Metrics:      nodespec.MetricsSocket(nodespec.ServiceControllers),
		Ready:        supervise.Probe{Notify: true},
		StartTimeout: 5 * time.Minute,
		GracePeriod:  componentsGracePeriod,
	}}
}

package nodeplan

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// group is the control group of the services of the system. The kernel reserves memory and CPU for
// it (machined/host), so pods, which run in the sibling group /kubepods, cannot starve the
// services.
const group = cgroup.System + "/"

// path is the environment variable PATH of services that start other programs: containerd starts
// shims and runc, the kubelet mount(8), and the service proxy nft.
const path = "PATH=/usr/bin:/usr/sbin"

// collectorOff turns off Go's garbage collector at the start of a program, until the program turns
// the collector on (process.HeapLimiter). Before that, an orchestrator allocates 9 MiB of permanent
// objects. The collector would run four times without freeing them and use a quarter of the
// processor time.
const collectorOff = "GOGC=off"

const mib = 1 << 20

// profileSocket returns the path of the socket on which a program of the system serves its
// profiles.
func profileSocket(service string) string { return paths.Profiles + "/" + service + ".sock" }

// Apid returns the service apid, which runs with and without a configuration.
func Apid() supervise.Service {
	return supervise.Service{
		Name: nodespec.ServiceApid,
		Process: supervise.Spec{
			Args: []string{"/usr/bin/apid"},
			// Without GOMAXPROCS, Go would need more threads than PidsMax permits on a machine with
			// many processors.
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

// Metricsd returns the service that serves the metrics of the machine (package metricsd). It runs
// only if Machine.spec.metrics is set.
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

// Podlogd returns the service that reads the logs of pods (package podlogd). It runs only if a
// receiver gets these logs. It runs with the additional group 0, which can read the files of
// containerd and the kubelet.
func Podlogd(settings nodespec.PodLogs) (supervise.Service, error) {
	text, err := json.Marshal(settings)
	return supervise.Service{
		Name: nodespec.ServicePodLogs,
		Process: supervise.Spec{
			Args:        []string{paths.Podlogd, string(text)},
			Env:         []string{"GOMEMLIMIT=40MiB", "GOGC=50", "GOMAXPROCS=2"},
			UID:         paths.UserPodLogs,
			GID:         paths.UserPodLogs,
			Groups:      []uint32{0},
			NoNewPrivs:  true,
			OOMScoreAdj: new(-100),
		},
		Cgroup:  group + nodespec.ServicePodLogs,
		Limits:  cgroup.Limits{MemoryMax: 64 * mib, CPUWeight: 20, PidsMax: 64},
		Profile: profileSocket(nodespec.ServicePodLogs),
		Ready:   supervise.Probe{Notify: true},
		// podlogd becomes ready when the kubelet has created the directory of logs.
		StartTimeout: 5 * time.Minute,
		GracePeriod:  5 * time.Second,
	}, err
}

// Extensions returns the services of the active extensions. Like apid, they run with and without a
// configuration. Each service is confined like a service of the system: a user of its own, only the
// listed capabilities, no new privileges, and hard limits.
func Extensions(active []extension.Statement) (list []supervise.Service) {
	for _, e := range active {
		for _, s := range e.Services {
			env := []string{path}
			if s.State {
				env = append(env, "STATE_DIRECTORY="+s.StateDir())
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

// componentsGracePeriod is the time that a process with several components has to stop. It is
// sufficient if two components hang, one after the other (orchestrator/process), and the other
// components stop normally.
const componentsGracePeriod = 20 * time.Second

// Expected returns the names of the services of the node that run with the configuration c. apid is
// not among them. The result is nil if c is nil or has no cluster.
func Expected(c *config.Config) []string {
	if c == nil || c.Cluster == nil {
		return nil
	}
	var names []string
	for _, s := range Kubernetes(c.Machine.Spec.Role == config.RoleControlPlane) {
		names = append(names, s.Name)
	}
	return names
}

// Kubernetes returns the services of a node. orchestrator-node starts after containerd. All other
// services start at the same time and wait for each other inside their processes, because most of
// their start needs no other service.
func Kubernetes(controlPlane bool) []supervise.Service {
	list := []supervise.Service{{
		Name: nodespec.ServiceContainerd,
		Process: supervise.Spec{
			Args:        []string{paths.Containerd, "--config", paths.ContainerdConfig},
			Env:         []string{path},
			OOMScoreAdj: new(-999),
		},
		Cgroup: group + nodespec.ServiceContainerd,
		// Shims are child processes in containerd's control group and continue when containerd
		// stops. The group has no memory or process limit, because the kernel could enforce such a
		// limit by killing pods.
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
		// The service becomes ready when its Node object exists. For that it needs an API server,
		// which can be on another machine.
		StartTimeout: 10 * time.Minute,
		// The child processes are mount(8) and nft(8), which end by themselves. The mounts of pods
		// stay when the service stops.
		LeaveChildren: true,
	})
}

// OfNode reports whether a service belongs to the node. Such a service can use the parts of DATA.
// The result is false for apid, metricsd and the services of extensions.
func OfNode(s supervise.Service) bool {
	return s.Name == nodespec.ServicePodLogs || slices.ContainsFunc(Kubernetes(true), func(k supervise.Service) bool { return k.Name == s.Name })
}

// controlPlaneServices returns the services that only control-plane machines run.
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

package nodeplan

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Services are the services of a configuration.
type Services struct {
	// All are the services that run once nothing holds them back.
	All  []supervise.Service
	Hold Hold
	// Problem says why the services cannot be planned, or why the machine refuses the configuration
	// (HoldRefused).
	Problem error

	run   []supervise.Service
	stays func(supervise.Service) bool // the running services that continue; nil: run starts
}

// Now returns the services that should run now, from the services that should run at present.
func (s Services) Now(running []supervise.Service) []supervise.Service {
	if s.stays == nil {
		return s.run
	}
	return slices.DeleteFunc(slices.Clone(running), func(r supervise.Service) bool { return !s.stays(r) })
}

// Hold is the reason for which services are held back.
type Hold string

// The reasons, in the order in which they are checked.
const (
	HoldNothing   Hold = ""
	HoldNoNode    Hold = "no node"     // the configuration runs no node
	HoldRefused   Hold = "refused"     // the machine cannot run the configuration at present
	HoldExposed   Hold = "no firewall" // the port guard or the configured firewall is not active
	HoldNoAddress Hold = "no address"  // the running services continue until the address is lost
	HoldNotJoined Hold = "not joined"  // a worker has no certificates of the cluster yet
	HoldRemoved   Hold = "removed"     // pods of a removed worker stop before its node
	HoldVolumes   Hold = "no volume"   // a part of DATA is missing; the running services continue
)

// services returns the services of a configuration, and the reason for which they are held back.
func services(c *config.Config, f Facts, w Want, a credentials.Authorities) Services {
	apid := append([]supervise.Service{Apid()}, Extensions(f.Extensions)...)
	s := Services{All: apid, run: apid}
	if errors.Is(w.NodeProblem, ErrNoNode) {
		s.Hold = HoldNoNode
		return s
	}
	node := Kubernetes(c.Machine.Spec.Role == config.RoleControlPlane)
	if w.NodeProblem == nil {
		node, s.Problem = withSpec(withProxy(node, f.Egress.Proxy), w.Node.Spec, a)
	} else if !errors.Is(w.NodeProblem, ErrNoAddress) {
		s.Problem = w.NodeProblem
	}
	if c.Machine.Spec.Metrics != nil {
		node = append(withContainerdMetrics(node), Metricsd())
	}
	node, err := withPodLogs(node, c.Machine)
	if err != nil && s.Problem == nil {
		s.Problem = err
	}
	s.All = slices.Concat(apid, node)
	switch facts := f.Services; {
	case facts.Refusal != nil:
		s.Hold, s.Problem = HoldRefused, facts.Refusal
	case facts.Exposed:
		s.Hold = HoldExposed
	case errors.Is(w.NodeProblem, ErrNoAddress):
		s.Hold, s.stays = HoldNoAddress, func(r supervise.Service) bool { return !facts.AddressLost || needsNoAddress(r) }
	case c.IsWorker() && !f.Member.Joined:
		s.Hold = HoldNotJoined
	case c.IsWorker() && f.Member.Removed:
		s.Hold, s.stays = HoldRemoved, func(supervise.Service) bool { return true }
		if f.Member.PodsStopped {
			s.run, s.stays = withoutNode(slices.Concat(apid, Kubernetes(false))), nil
		}
	case facts.Volumes != nil:
		s.Hold, s.stays, s.Problem = HoldVolumes, func(supervise.Service) bool { return true }, facts.Volumes
	default:
		s.run = s.All
	}
	return s
}

// withProxy makes containerd use the forwarder at a URL; empty for none. containerd reads the
// variables at its start, and never uses a proxy for loopback addresses.
func withProxy(services []supervise.Service, proxy string) []supervise.Service {
	for i, s := range services {
		if s.Name == nodespec.ServiceContainerd && proxy != "" {
			services[i].Process.Env = append(s.Process.Env, "HTTP_PROXY="+proxy, "HTTPS_PROXY="+proxy)
		}
	}
	return services
}

// withPodLogs adds podlogd if a receiver gets the logs of pods.
func withPodLogs(services []supervise.Service, m config.Machine) ([]supervise.Service, error) {
	settings := nodespec.PodLogs{Machine: m.Metadata.Name}
	for _, r := range m.Spec.Logging.Receivers {
		if r.GetsPods() {
			settings.Receivers = append(settings.Receivers, r.Name)
		}
	}
	pods := m.Spec.Logging.Pods
	if len(settings.Receivers) == 0 || pods == nil {
		return services, nil
	}
	settings.Namespaces, settings.Exclude, settings.LinesPerSecond = pods.Namespaces, pods.Exclude, pods.LinesPerSecond
	service, err := Podlogd(settings)
	if err != nil {
		return nil, fmt.Errorf("logs of pods: cannot describe: %w", err)
	}
	return append(services, service), nil
}

// withContainerdMetrics restarts containerd when its metrics begin or end: its configuration, which
// it reads at its start, has their address.
func withContainerdMetrics(services []supervise.Service) []supervise.Service {
	for i, s := range services {
		if s.Name == nodespec.ServiceContainerd {
			services[i].Process.Env = append(s.Process.Env, fmt.Sprintf("ORLOP_METRICS=127.0.0.1:%d", paths.PortContainerd))
		}
	}
	return services
}

// withSpec adds to each service a hash of the files that it reads at its start: supervise.Diff
// compares whole services.
func withSpec(services []supervise.Service, spec nodespec.Spec, a credentials.Authorities) ([]supervise.Service, error) {
	dirs := map[string]string{nodespec.ServiceAPI: paths.KubeAPI, nodespec.ServiceControllers: paths.KubeControllers, nodespec.ServiceNode: paths.KubeNode}
	for i, s := range services {
		dir, ours := dirs[s.Name]
		if !ours {
			continue
		}
		text, err := json.Marshal(specFor(spec, s.Name))
		if err != nil {
			return nil, fmt.Errorf("node: cannot describe: %w", err)
		}
		services[i].Process.Env = append(s.Process.Env, fmt.Sprintf("ORLOP_SPEC=%x", sha256.Sum256(append(text, a.ReadAtStart(dir)...))))
	}
	return services, nil
}

// specFor returns the part of the node's description that a service reads: a change of the
// resolvers, for example by a new lease, of volumes and swap, of rules for images, or of the
// kubelet's settings does not restart etcd and the API server.
func specFor(spec nodespec.Spec, service string) nodespec.Spec {
	if service != nodespec.ServiceAPI {
		spec.Network.Forwarder = false
	}
	kube := spec.Kubernetes
	switch service {
	case nodespec.ServiceNode:
		spec.Kubernetes = config.Kubernetes{MaxPods: kube.MaxPods, Kubelet: kube.Kubelet, FeatureGates: kube.FeatureGates}
		return spec
	case nodespec.ServiceAPI:
		spec.Kubernetes = config.Kubernetes{
			PodEvictionTimeout: kube.PodEvictionTimeout, APIServer: kube.APIServer, PodSecurity: kube.PodSecurity, Audit: kube.Audit, FeatureGates: kube.FeatureGates,
			SealedPolicies: kube.SealedPolicies,
		}
	case nodespec.ServiceControllers:
		spec.Kubernetes = config.Kubernetes{
			FinishedPods: kube.FinishedPods, Scheduler: kube.Scheduler, ControllerManager: kube.ControllerManager, FeatureGates: kube.FeatureGates,
		}
	}
	spec.DNS = nodespec.DNS{}
	spec.LocalVolumes.Pools, spec.LocalVolumes.Volume = nil, ""
	spec.Node.ReservedCPUs, spec.Node.Swap, spec.Node.ImagePolicy = "", 0, nil
	return spec
}

// needsNoAddress reports whether a service runs on a machine without an address. containerd
// continues, and so do the pods, and the services of extensions.
func needsNoAddress(s supervise.Service) bool {
	return !OfNode(s) || s.Name == nodespec.ServiceContainerd
}

// withoutNode returns the services of a removed worker.
func withoutNode(services []supervise.Service) []supervise.Service {
	return slices.DeleteFunc(services, func(s supervise.Service) bool { return s.Name == nodespec.ServiceNode })
}

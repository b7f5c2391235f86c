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

// Services are the planned services of a configuration.
type Services struct {
	// All are the services that run when Hold is HoldNothing.
	All  []supervise.Service
	Hold Hold
	// Problem says why the services cannot be planned, why the machine cannot run the configuration
	// (HoldRefused), or why a part of DATA is missing (HoldVolumes).
	Problem error

	// run are the services that run now if stays is nil.
	run []supervise.Service
	// stays reports whether a running service continues while services are held back.
	stays func(supervise.Service) bool
}

// Now returns the services that should run now. running are the services that should run according
// to the previous plan. While services are held back, some of running can continue.
func (s Services) Now(running []supervise.Service) []supervise.Service {
	if s.stays == nil {
		return s.run
	}
	return slices.DeleteFunc(slices.Clone(running), func(r supervise.Service) bool { return !s.stays(r) })
}

// Hold is the reason why services are held back.
type Hold string

// The values of Hold, in the order in which the function services checks them.
const (
	HoldNothing   Hold = ""
	HoldNoNode    Hold = "no node"     // The machine runs no node.
	HoldRefused   Hold = "refused"     // The machine cannot run the configuration at present.
	HoldExposed   Hold = "no firewall" // The port guard or the configured firewall is not active.
	HoldNoAddress Hold = "no address"  // Running services continue until AddressLost.
	HoldNotJoined Hold = "not joined"  // The worker has no certificates of the cluster yet.
	HoldRemoved   Hold = "removed"     // A removed worker stops its pods, then its node.
	HoldVolumes   Hold = "no volume"   // A part of DATA is missing; running services continue.
)

// services returns the services of a configuration and the reason why they are held back.
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

// withProxy sets the proxy variables in the environment of containerd to the URL of the forwarder.
// It changes nothing if proxy is empty. containerd reads the variables when it starts, and never
// uses a proxy for loopback addresses.
func withProxy(services []supervise.Service, proxy string) []supervise.Service {
	for i, s := range services {
		if s.Name == nodespec.ServiceContainerd && proxy != "" {
			services[i].Process.Env = append(s.Process.Env, "HTTP_PROXY="+proxy, "HTTPS_PROXY="+proxy)
		}
	}
	return services
}

// withPodLogs adds podlogd if a log receiver gets the logs of pods.
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

// withContainerdMetrics adds the address of containerd's metrics to the environment of containerd.
// supervise.Diff restarts a service after a change of its environment. containerd therefore
// restarts, and reads its configuration again, when metrics are turned on or off.
func withContainerdMetrics(services []supervise.Service) []supervise.Service {
	for i, s := range services {
		if s.Name == nodespec.ServiceContainerd {
			services[i].Process.Env = append(s.Process.Env, fmt.Sprintf("ORLOP_METRICS=127.0.0.1:%d", paths.PortContainerd))
		}
	}
	return services
}

// withSpec adds a hash of the files that a service reads at its start to the environment of the
// service. A change of these files then restarts the service, because supervise.Diff compares the
// environments.
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

// specFor returns the part of the node's description that a service reads. It omits the other
// parts, so changes of them do not restart the service. For example, new resolvers from a lease,
// swap, rules for images and settings of the kubelet do not restart etcd and the API server.
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

// needsNoAddress reports whether a service continues on a machine that has lost its address. It
// returns true for containerd, with which the pods continue, and for services that do not belong to
// the node.
func needsNoAddress(s supervise.Service) bool {
	return !OfNode(s) || s.Name == nodespec.ServiceContainerd
}

// withoutNode returns the services without orchestrator-node, which are the services that run on a
// removed worker.
func withoutNode(services []supervise.Service) []supervise.Service {
	return slices.DeleteFunc(services, func(s supervise.Service) bool { return s.Name == nodespec.ServiceNode })
}

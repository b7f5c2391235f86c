package nodespec

import (
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/paths"
)

// MachineTCP returns the TCP ports of a machine on its own addresses. No Service and no host port
// may take them. The list is the same for workers and control-plane machines, because a machine may
// change its role.
func MachineTCP() []int {
	return []int{etcdjoin.ClientPort, etcdjoin.PeerPort, paths.PortKubernetes, paths.PortKubelet, paths.PortMetrics, paths.PortMetricsd, paths.PortApid}
}

// MachineUDP returns the UDP ports for packets between pods of different machines.
func MachineUDP() []int { return []int{paths.PortVXLAN, paths.PortWireGuard} }

// LoopbackTCP returns the TCP ports of the machine's components on loopback (see TestLoopbackPorts
// in package orchestrator): health of the kubelet and of the service proxy, the proxy's metrics,
// the controllers, the scheduler, containerd, and the balancer.
func LoopbackTCP() []int {
	return []int{6444, 10248, 10249, 10256, 10257, 10259, paths.PortContainerd}
}

// ClosedToPods returns the ports of MachineTCP that no pod needs on any machine. 6443 is not in the
// list, because a pod reaches the API server through its Service. 10250 has its own field
// (Kubelet). A Prometheus in a pod reads the metrics of machines (PortMetricsd).
func ClosedToPods() []int {
	return []int{etcdjoin.ClientPort, etcdjoin.PeerPort, paths.PortMetrics, paths.PortApid}
}

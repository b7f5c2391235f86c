package nodespec

import (
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/paths"
)

// MachineTCP returns the TCP ports on the addresses of a machine that its own processes use. No
// Service and no host port may use them. The list is the same for workers and control-plane
// machines, because a machine may change its role.
func MachineTCP() []int {
	return []int{etcdjoin.ClientPort, etcdjoin.PeerPort, paths.PortKubernetes, paths.PortKubelet, paths.PortMetrics, paths.PortMetricsd, paths.PortApid}
}

// MachineUDP returns the UDP ports that carry packets between pods of different machines.
func MachineUDP() []int { return []int{paths.PortVXLAN, paths.PortWireGuard} }

// LoopbackTCP returns the TCP ports on loopback that the components of a machine use: the balancer,
// the health of the kubelet and of the service proxy, the metrics of the proxy, the controllers,
// the scheduler and containerd. TestLoopbackPorts in package orchestrator checks the list.
func LoopbackTCP() []int {
	return []int{6444, 10248, 10249, 10256, 10257, 10259, paths.PortContainerd}
}

// ClosedToPods returns the ports of MachineTCP that no pod needs on any machine. It omits three
// ports: that of the API server (6443), which pods reach through its Service; that of the kubelet
// (10250), which has its own rule; and PortMetricsd, from which a Prometheus in a pod reads the
// metrics of machines.
func ClosedToPods() []int {
	return []int{etcdjoin.ClientPort, etcdjoin.PeerPort, paths.PortMetrics, paths.PortApid}
}

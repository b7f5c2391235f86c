package nodespec

import (
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/paths"
)

// MachineTCP are the TCP ports that the machines of a cluster answer at on their own addresses. No
// Service and no host port may take one of them on such an address: the same list on workers and
// control-plane machines, because a machine may change its role.
func MachineTCP() []int {
	return []int{etcdjoin.ClientPort, etcdjoin.PeerPort, paths.PortKubernetes, paths.PortKubelet, paths.PortMetrics, paths.PortApid}
}

// MachineUDP are the UDP ports that carry packets between pods of different machines.
func MachineUDP() []int { return []int{paths.PortVXLAN, paths.PortWireGuard} }

// LoopbackTCP are the TCP ports at which parts of the machine answer each other on loopback (see
// TestLoopbackPorts in package orchestrator): health of the kubelet and of the service proxy, its
// metrics, the controllers, the scheduler, and the way to an API server.
func LoopbackTCP() []int { return []int{6444, 10248, 10249, 10256, 10257, 10259} }

// ClosedToPods are those of MachineTCP that no pod has a reason to reach on any machine. 6443 is
// not among them, because a pod reaches the API server through its Service, and 10250 has a field
// of its own (Kubelet).
func ClosedToPods() []int {
	return []int{etcdjoin.ClientPort, etcdjoin.PeerPort, paths.PortMetrics, paths.PortApid}
}

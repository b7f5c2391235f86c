package membership

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/trust"
)

// checkCallerAddress rejects a source address that does not belong to the caller alone, because
// certificates for this address would impersonate another machine. For example, the source is an
// address of this machine if a process here forwards the call, and an address of a pod if a pod
// calls.
func checkCallerAddress(c *config.Config, own []netip.Addr, a netip.Addr) error {
	owner := ""
	if slices.Contains(own, a) {
		owner = "this machine"
	}
	for _, r := range slices.Concat(c.Cluster.Spec.Networks.Pods, c.Cluster.Spec.Networks.Services) {
		if r.Contains(a) {
			owner = "a pod or a service"
		}
	}
	if a == c.Cluster.Spec.Endpoint.Addr() || slices.Contains(c.Cluster.Spec.ControlPlanes, a) || slices.Contains(c.Cluster.Spec.VirtualAddresses, a) {
		owner = "the control plane"
	}
	// a certificate for one of these names impersonates the API server
	for _, name := range c.Cluster.Spec.Kubernetes.APIServer.ExtraSANs {
		if san, err := netip.ParseAddr(name); err == nil && san.Unmap() == a.Unmap() {
			owner = "the API server"
		}
	}
	if a.IsLoopback() || !a.IsGlobalUnicast() {
		owner = "no single machine"
	}
	if owner == "" {
		return nil
	}
	return fmt.Errorf("the call comes from %s, which is the address of %s; a machine joins from an address of its own", a, owner)
}

// reassigned reports whether the name of a removed machine belongs to the control plane, to a
// member or to an open ticket.
func reassigned(c *config.Config, known trust.Ledger, name string, now time.Time) bool {
	return reservedName(c, known, name) || known.NameInUse(name, now)
}

// reservedName reports whether certificates for a name would impersonate another part of the
// cluster. known has the names of the other control-plane machines that have reported their name.
func reservedName(c *config.Config, known trust.Ledger, name string) bool {
	for _, address := range c.Cluster.Spec.ControlPlanes {
		if plane, met := known.ControlPlanes[address.String()]; met && plane == name {
			return true
		}
	}
	// Services have certificates of the Kubernetes CA too, and their names have these suffixes
	// (DNS-Based Service Discovery of Kubernetes).
	if name == c.Machine.Metadata.Name || name == "localhost" || name == "kubernetes" || strings.HasPrefix(name, "kubernetes.") ||
		strings.HasSuffix(name, ".svc") || strings.HasSuffix(name, ".svc."+c.Cluster.Spec.Networks.Domain) {
		return true
	}
	return name == c.Cluster.Spec.Endpoint.Host || slices.Contains(c.Cluster.Spec.Kubernetes.APIServer.ExtraSANs, name)
}

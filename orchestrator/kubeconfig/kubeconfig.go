// Package kubeconfig writes the client configuration of a component: where the API server is and
// which certificate file speaks for the component. Files are named, never embedded, so that a
// renewed certificate is picked up.
package kubeconfig

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Server is how a component of this machine reaches the API server.
type Server struct {
	URL string
	// Name is what the server's certificate must be for.
	Name string
}

// Loopback is where the API server of a control-plane machine listens for that machine, and where
// package balancer leads to one on a worker. So whatever runs on a machine finds one there.
var Loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), paths.PortKubernetes)

// beside is where package balancer listens on a control-plane machine, which has its own API server
// at Loopback, on all addresses.
var beside = netip.AddrPortFrom(Loopback.Addr(), 6444)

// Local returns the API server at Loopback: this machine's own for the control plane's processes,
// which work with no other.
func Local() Server { return at(Loopback) }

// Balancer is where package balancer leads the node's components to an API server that works. There
// is none on a control-plane machine that has no other one to lead to: there it would only be in
// the way.
func Balancer(spec nodespec.Spec) (listen netip.AddrPort, there bool) {
	switch {
	case !spec.ControlPlane:
		return Loopback, true
	case len(spec.OtherControlPlanes()) > 0:
		return beside, true
	}
	return netip.AddrPort{}, false
}

// Node returns the API server for the components of process "node": the balancer where there is
// one. So neither the machine's address nor one certain server has to work.
func Node(spec nodespec.Spec) Server {
	if listen, there := Balancer(spec); there {
		return at(listen)
	}
	return Local()
}

// Authorities is the file of those who say who is an API server to the components of process
// "node": the cluster's CA, and, where the balancer may lead to what stands in for one (package
// standin), that.
func Authorities(spec nodespec.Spec, dirs dirs.Dirs) string {
	if _, there := Balancer(spec); there {
		return dirs.Authorities()
	}
	return filepath.Join(dirs.Node, nodespec.CA)
}

// at is an API server by its address on loopback. Whoever leads there, the certificate is for the
// same name.
func at(address netip.AddrPort) Server {
	return Server{URL: "https://" + address.String(), Name: "localhost"}
}

// NodeFile returns the kubeconfig of the named component of process "node", with the client
// certificate cert and key of its folder.
func NodeFile(spec nodespec.Spec, dirs dirs.Dirs, name, cert, key string) component.File {
	return file(spec, Node(spec), Authorities(spec, dirs), dirs.Node, name, cert, key)
}

// ControllersFile is the same for a component of process "controllers".
func ControllersFile(spec nodespec.Spec, dirs dirs.Dirs, name, cert, key string) component.File {
	return file(spec, Local(), filepath.Join(dirs.Controllers, nodespec.CA), dirs.Controllers, name, cert, key)
}

func file(spec nodespec.Spec, server Server, ca, dir, name, cert, key string) component.File {
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[6]s
    certificate-authority: %[2]s
    tls-server-name: %[7]s
users:
- name: %[3]s
  user:
    client-certificate: %[4]s
    client-key: %[5]s
contexts:
- name: default
  context:
    cluster: %[1]s
    user: %[3]s
current-context: default
`, spec.Cluster, ca, name, filepath.Join(dir, cert), filepath.Join(dir, key), server.URL, server.Name)
	return component.File{Path: Path(dir, name), Mode: 0o600, Content: content}
}

// Path is the kubeconfig that the named component writes into its process's directory.
func Path(dir, component string) string { return filepath.Join(dir, component+".kubeconfig") }

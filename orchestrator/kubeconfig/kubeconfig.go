// Package kubeconfig writes the kubeconfig of a component: the address of the API server, and the
// paths of the component's client certificate and key. The kubeconfig contains only the paths of
// these files, so the component also uses a renewed certificate.
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

// Server is the address at which a component of this machine reaches an API server.
type Server struct {
	URL string
	// Name is the name in the server's certificate.
	Name string
}

// Loopback is an address at which every machine reaches an API server. On a control-plane machine,
// the machine's own API server listens there, and on a worker, package balancer.
var Loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), paths.PortKubernetes)

// besideLoopback is the address of package balancer on a control-plane machine. Its port differs
// from that of Loopback, because the machine's own API server already listens there.
var besideLoopback = netip.AddrPortFrom(Loopback.Addr(), 6444)

// Local returns the API server at Loopback. The control-plane processes use only this machine's own
// server.
func Local() Server { return at(Loopback) }

// Balancer returns the address at which package balancer connects the node's components to a ready
// API server. It returns false on a control-plane machine without other control-plane machines,
// because a balancer has no alternative server there.
func Balancer(spec nodespec.Spec) (listen netip.AddrPort, there bool) {
	switch {
	case !spec.Node.ControlPlane:
		return Loopback, true
	case len(spec.OtherControlPlanes()) > 0:
		return besideLoopback, true
	}
	return netip.AddrPort{}, false
}

// Node returns the API server for the components of process "node": the balancer, or, without a
// balancer, the machine's own API server. With a balancer the components depend neither on the
// machine's address nor on a particular server.
func Node(spec nodespec.Spec) Server {
	if listen, there := Balancer(spec); there {
		return at(listen)
	}
	return Local()
}

// Authorities returns the file of CAs that the components of process "node" trust for API servers:
// the cluster's CA and, with a balancer, also the certificate of the offline API server (package
// offlineapi).
func Authorities(spec nodespec.Spec, dirs dirs.Dirs) string {
	if _, there := Balancer(spec); there {
		return dirs.Authorities()
	}
	return filepath.Join(dirs.Node, nodespec.CA)
}

// The function at returns the server at a loopback address. Every API server that answers there has
// a certificate for localhost.
func at(address netip.AddrPort) Server {
	return Server{URL: "https://" + address.String(), Name: "localhost"}
}

// NodeFile returns the kubeconfig of the named component of process "node". cert and key are file
// names in the process's directory.
func NodeFile(spec nodespec.Spec, dirs dirs.Dirs, name, cert, key string) component.File {
	return file(spec, Node(spec), Authorities(spec, dirs), dirs.Node, name, cert, key)
}

// ControllersFile does the same as NodeFile, for a component of process "controllers".
func ControllersFile(spec nodespec.Spec, dirs dirs.Dirs, name, cert, key string) component.File {
	return file(spec, Local(), filepath.Join(dirs.Controllers, nodespec.CA), dirs.Controllers, name, cert, key)
}

// NodeComponent describes a component of process "node" with NodeFile as its only file.
func NodeComponent(spec nodespec.Spec, dirs dirs.Dirs, name, cert, key string) component.Component {
	return component.Component{Process: component.Node, Name: name, Files: []component.File{NodeFile(spec, dirs, name, cert, key)}}
}

// ControllersComponent does the same as NodeComponent, for process "controllers".
func ControllersComponent(spec nodespec.Spec, dirs dirs.Dirs, name, cert, key string) component.Component {
	return component.Component{Process: component.Controllers, Name: name, Files: []component.File{ControllersFile(spec, dirs, name, cert, key)}}
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
	return component.File{Path: component.KubeconfigPath(dir, name), Mode: 0o600, Content: content}
}

// Package kubeconfig writes the client configuration of a component: where the API server is and which certificate
// file speaks for the component. Files are named, never embedded, so that a renewed certificate is picked up.
package kubeconfig

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/layout"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Server is how a component of this machine reaches the API server.
type Server struct {
	URL string
	// Name is what the server's certificate must be for.
	Name string
}

// Loopback is where each machine's API server listens, and where package balancer leads to one on a machine that has none. So
// neither the machine's address nor one certain server has to work.
var Loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), paths.PortKubernetes)

// Local returns the API server for components of any node.
func Local() Server { return Server{URL: "https://" + Loopback.String(), Name: "localhost"} }

// File returns the kubeconfig of the named component in folder dir, with the client certificate cert and key there.
func File(spec nodespec.Spec, dir, name, cert, key string) component.File {
	server := Local()
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
`, spec.Cluster, filepath.Join(dir, nodespec.CA), name, filepath.Join(dir, cert), filepath.Join(dir, key), server.URL, server.Name)
	return component.File{Path: layout.Kubeconfig(dir, name), Mode: 0o600, Content: content}
}

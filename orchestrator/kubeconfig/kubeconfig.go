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
	// Name is what the server's certificate must be for; empty for the URL's host.
	Name string
}

// ServerFor returns the API server for components of the node: its own over loopback on a control plane, so that
// neither the machine's address nor the network has to work; the cluster's endpoint elsewhere.
func ServerFor(spec nodespec.Spec) Server {
	if !spec.ControlPlane {
		return Server{URL: spec.Endpoint}
	}
	loopback := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), paths.PortKubernetes)
	return Server{URL: "https://" + loopback.String(), Name: "localhost"}
}

// File returns the kubeconfig of the named component in folder dir, with the client certificate cert and key there.
func File(spec nodespec.Spec, dir, name, cert, key string) component.File {
	server := ServerFor(spec)
	cluster := fmt.Sprintf("    server: %s\n    certificate-authority: %s\n", server.URL, filepath.Join(dir, nodespec.CA))
	if server.Name != "" {
		cluster += fmt.Sprintf("    tls-server-name: %s\n", server.Name)
	}
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
%[2]susers:
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
`, spec.Cluster, cluster, name, filepath.Join(dir, cert), filepath.Join(dir, key))
	return component.File{Path: layout.Kubeconfig(dir, name), Mode: 0o600, Content: content}
}

package skew

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// timeout bounds a request.
const timeout = 10 * time.Second

// List returns those versions of the cluster that the machine may read. If a request fails, the
// field Problem of its result has the reason.
func List(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs) disruption.Versions {
	dir, cert, key := dirs.Node, nodespec.KubeletCert, nodespec.KubeletKey
	if spec.Node.ControlPlane {
		dir, cert, key = dirs.Controllers, nodespec.ControllersCert, nodespec.ControllersKey
	}
	at := func(host string) *rest.Config {
		return &rest.Config{Host: host, Timeout: timeout, UserAgent: "orlop-versions", TLSClientConfig: rest.TLSClientConfig{
			ServerName: kubeconfig.Local().Name, // the certificate of each API server has this name
			CAFile:     filepath.Join(dir, nodespec.CA), CertFile: filepath.Join(dir, cert), KeyFile: filepath.Join(dir, key),
		}}
	}
	others := spec.OtherControlPlanes()
	var hosts []string
	if spec.Node.ControlPlane {
		hosts = append(hosts, kubeconfig.Local().URL)
	}
	for _, a := range others {
		hosts = append(hosts, "https://"+netip.AddrPortFrom(a, paths.PortKubernetes).String())
	}
	out := disruption.Versions{Servers: make([]disruption.Server, len(others))}
	var reading sync.WaitGroup
	for i, a := range others {
		reading.Go(func() { out.Servers[i] = readServer(ctx, a, at(hosts[len(hosts)-len(others)+i])) })
	}
	if spec.Node.ControlPlane {
		reading.Go(func() { out.Nodes, out.Problem = firstNodes(ctx, hosts, at) })
	} else if len(others) == 0 {
		out.Problem = "the configuration names no API server"
	}
	reading.Wait()
	return out
}

// readServer reads the version of an API server. A failure is in the field Problem of the result.
func readServer(ctx context.Context, address netip.Addr, config *rest.Config) disruption.Server {
	out := disruption.Server{Address: address.String()}
	client, err := component.NewClient(config)
	if err != nil {
		out.Problem = err.Error()
		return out
	}
	text, err := client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		out.Problem = err.Error()
		return out
	}
	var have version.Info
	if err := json.Unmarshal(text, &have); err != nil {
		out.Problem = fmt.Sprintf("cannot decode its version: %v", err)
		return out
	}
	out.Version = have.GitVersion
	if have.EmulationMinor != have.Minor {
		out.Emulated = emulated(have)
	}
	return out
}

// emulated returns the emulated minor version, for example "v1.36", or "" if the server states
// none.
func emulated(have version.Info) string {
	if have.EmulationMajor == "" || have.EmulationMinor == "" {
		return ""
	}
	return "v" + have.EmulationMajor + "." + have.EmulationMinor
}

// firstNodes lists the Nodes at the first API server that answers. If no API server answers,
// problem is the error of the first API server in hosts.
func firstNodes(ctx context.Context, hosts []string, at func(host string) *rest.Config) (nodes []disruption.Node, problem string) {
	for _, host := range hosts {
		client, err := component.NewClient(at(host))
		if err == nil {
			nodes, err = listNodes(ctx, client)
		}
		if err == nil {
			return nodes, ""
		}
		if problem == "" {
			problem = err.Error()
		}
	}
	return nil, problem
}

// listNodes returns the Nodes with the versions of their kubelets. It reads them from the cache of
// the API server.
func listNodes(ctx context.Context, client kubernetes.Interface) ([]disruption.Node, error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	var out []disruption.Node
	for _, n := range list.Items {
		_, controlPlane := n.Labels["node-role.kubernetes.io/control-plane"]
		out = append(out, disruption.Node{Name: n.Name, Address: addressOf(n), Version: n.Status.NodeInfo.KubeletVersion, ControlPlane: controlPlane})
	}
	return out, nil
}

// addressOf returns the first internal address of a Node, or "" if it has none.
func addressOf(n corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

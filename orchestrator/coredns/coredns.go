// Package coredns runs CoreDNS inside the process "node" as the cluster's DNS on this node.
//
// It listens on the node's bridge address (see package podnetwork). The node publishes that address
// as an endpoint of the kube-dns Service, so that every node answers queries to the cluster DNS
// address itself. Only configured resolvers of the machine or the cluster are used for external
// names.
//
// CoreDNS holds the cluster's names in memory, so it continues to answer when the API server is
// unavailable. If it starts while the API server is unavailable, it answers external names, and
// answers SERVFAIL for the cluster's names. It never answers NXDOMAIN for them, because clients
// cache NXDOMAIN.
package coredns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	// The plugins in the Corefile register themselves.
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/template"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component.
const Name = "coredns"

// watch queries the cluster's own name every startInterval until the first answer, and then every
// checkInterval. timeout is the limit of each query.
const (
	checkInterval = 10 * time.Second
	timeout       = 2 * time.Second
	startInterval = 300 * time.Millisecond
)

// Component describes CoreDNS without its Run function, or its external replacement. The Corefile
// depends on the node's pod range and is created when the range is known.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	if spec.External.DNS {
		return component.External(Name, "an external server answers at the cluster DNS address")
	}
	c := kubeconfig.NodeComponent(spec, dirs, Name, nodespec.DNSCert, nodespec.DNSKey)
	if t := spec.DNS.TLS; t != nil && t.CA != "" {
		file := filepath.Join(filepath.Dir(component.KubeconfigPath(dirs.Node, Name)), resolverCA)
		c.Files = append(c.Files, component.File{Path: file, Mode: 0o644, Content: t.CA})
	}
	return c
}

// Run answers on the addresses that the function addresses returns, until ctx is done. addresses
// waits until the node has them.
func Run(ctx context.Context, env component.Env, addresses func(context.Context) ([]netip.Addr, error)) error {
	listen, err := addresses(ctx)
	if err != nil {
		return nil // stopped before the start
	}
	dnsserver.Quiet, caddy.Quiet = true, true
	registerRanges()
	corefile := Corefile(env.Spec, component.KubeconfigPath(env.Dir, Name), listen)
	server, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(corefile), ServerTypeName: "dns"})
	// CoreDNS has redirected klog, the log of Kubernetes in the whole process, to its own log,
	// which writes to the standard log. ClearLogger undoes the redirection. While both logs are
	// redirected to each other, a write deadlocks, so main.go redirects the standard log to klog
	// only after this point.
	klog.ClearLogger()
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", join(listen), err)
	}
	watch(ctx, "kubernetes.default.svc."+env.Spec.Network.DNSDomain+".", listen, env.Announce)
	if err := server.Stop(); err != nil {
		return fmt.Errorf("cannot stop: %w", err)
	}
	return nil
}

// watch queries a name that every cluster has, and announces every change of the result, until ctx
// is done.
func watch(ctx context.Context, name string, listen []netip.Addr, announce component.Announce) {
	server := net.JoinHostPort(listen[0].String(), dnsserver.Port)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}}
	ticker := time.NewTicker(startInterval)
	defer ticker.Stop()
	last, ready := "starting", false
	for {
		problem := query(ctx, resolver, name)
		if problem == "" && !ready {
			ready = true
			ticker.Reset(checkInterval)
		}
		if problem != last && ctx.Err() == nil && (ready || problem == "") {
			detail := problem
			if detail == "" {
				detail = "answers on " + join(listen)
			}
			announce(Name, problem == "", detail)
			last = problem
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func query(ctx context.Context, resolver *net.Resolver, name string) string {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := resolver.LookupHost(ctx, name); err != nil {
		return err.Error()
	}
	return ""
}

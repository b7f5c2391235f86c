// Package coredns runs CoreDNS inside the process "node" as the cluster's DNS on this node.
//
// It listens on the node's bridge address (see package podnetwork), which the node publishes as an
// endpoint of the kube-dns Service, so that the cluster DNS address is answered on every node by
// the node itself. Nothing outside the cluster is asked unless the machine or the cluster was given
// resolvers.
//
// It keeps the cluster's names in memory, so it goes on when the API server is away. When it starts
// while the API server is away, it answers names outside, and says SERVFAIL about the cluster's,
// never that there are none: clients remember that.
package coredns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	// the plugins that the Corefile names register themselves
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

// Name is the component's name.
const Name = "coredns"

// check is how often the answer for the cluster's own name is looked at, and how long it may take.
const (
	check    = 10 * time.Second
	patience = 2 * time.Second
	starting = 300 * time.Millisecond
)

// Component describes CoreDNS without its Run function, or what stands in its place where something
// else does its work. Its Corefile depends on the node's pod range and is made when that is known.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	if spec.External.DNS {
		return component.External(Name, "something else answers at the cluster DNS's address")
	}
	client := kubeconfig.NodeFile(spec, dirs, Name, nodespec.DNSCert, nodespec.DNSKey)
	return component.Component{Process: component.Node, Name: Name, Files: []component.File{client}}
}

// Run answers on the addresses until ctx is done. addresses waits until the node has them.
func Run(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, addresses func(context.Context) ([]netip.Addr, error), announce component.Announce) error {
	listen, err := addresses(ctx)
	if err != nil {
		return nil // asked to stop before there was anything to stop
	}
	dnsserver.Quiet, caddy.Quiet = true, true
	registerRanges()
	corefile := Corefile(spec, kubeconfig.Path(dirs.Node, Name), listen)
	server, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(corefile), ServerTypeName: "dns"})
	// CoreDNS takes Kubernetes' log of the whole process for its own. Its own goes to the standard
	// log (see main.go, which must not send that back to Kubernetes' log: two locks, one deadlock).
	klog.ClearLogger()
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", words(listen), err)
	}
	watch(ctx, "kubernetes.default.svc."+spec.DNSDomain+".", listen, announce)
	if err := server.Stop(); err != nil {
		return fmt.Errorf("cannot stop: %w", err)
	}
	return nil
}

// watch asks for a name that every cluster has until ctx is done, and announces every change.
func watch(ctx context.Context, name string, listen []netip.Addr, announce component.Announce) {
	server := net.JoinHostPort(listen[0].String(), dnsserver.Port)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}}
	ticker := time.NewTicker(starting)
	defer ticker.Stop()
	last, ready := "starting", false
	for {
		problem := ask(ctx, resolver, name)
		if problem == "" && !ready {
			ready = true
			ticker.Reset(check)
		}
		if problem != last && ctx.Err() == nil && (ready || problem == "") {
			detail := problem
			if detail == "" {
				detail = "answers on " + words(listen)
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

func ask(ctx context.Context, resolver *net.Resolver, name string) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := resolver.LookupHost(ctx, name); err != nil {
		return err.Error()
	}
	return ""
}

package coredns

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/kubernetes"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// rangesName is the name of a CoreDNS plugin. The plugin gives the final answer for names of
// addresses in the cluster's own ranges. Its arguments are these ranges as reverse zones.
//
// The plugin kubernetes passes on a query for an address without a name, because external machines
// may have a name. It also does so before it has loaded its names. For the cluster's own ranges
// that would be wrong: external resolvers would learn the addresses of pods, and would answer that
// they have no names.
const rangesName = "clusterranges"

// registerRanges registers the plugin with CoreDNS, after kubernetes.
var registerRanges = sync.OnceFunc(func() {
	plugin.Register(rangesName, setupRanges)
	at := slices.Index(dnsserver.Directives, "kubernetes") + 1
	dnsserver.Directives = slices.Insert(slices.Clone(dnsserver.Directives), at, rangesName)
})

type ranges struct {
	next    plugin.Handler
	zones   plugin.Zones
	cluster *kubernetes.Kubernetes
}

func setupRanges(c *caddy.Controller) error {
	c.Next() // the plugin's name
	r := &ranges{zones: plugin.OriginsFromArgsOrServerBlock(c.RemainingArgs(), nil)}
	config := dnsserver.GetConfig(c)
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		r.next = next
		return r
	})
	c.OnStartup(func() error {
		var ok bool
		if r.cluster, ok = config.Handler("kubernetes").(*kubernetes.Kubernetes); !ok {
			return fmt.Errorf("%s: cannot start: the plugin kubernetes is not in its server block", rangesName)
		}
		return nil
	})
	return nil
}

// Name is the name of the plugin.
func (r *ranges) Name() string { return rangesName }

// ServeDNS answers queries in the zones: NXDOMAIN, or SERVFAIL while the cluster's data are not
// loaded.
func (r *ranges) ServeDNS(ctx context.Context, w dns.ResponseWriter, question *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: question}
	zone := r.zones.Matches(state.Name())
	switch {
	case zone == "":
		return plugin.NextOrFailure(rangesName, r.next, ctx, w, question)
	case !r.cluster.Ready():
		return plugin.BackendError(ctx, r.cluster, zone, dns.RcodeServerFailure, state, nil, plugin.Options{})
	}
	return plugin.BackendError(ctx, r.cluster, zone, dns.RcodeNameError, state, nil, plugin.Options{})
}

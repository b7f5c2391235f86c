package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/orchestrator/l2announcer"
	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). Each machine decides for itself. The output
// of `routes` is the table of a router: each address with the machines that announce it.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *cluster {
		return &cluster{t: t, api: map[string][]netip.Addr{}, boots: map[string]string{}}
	}, scripttest.Commands[*cluster]{
		"nodes":   (*cluster).add,     // nodes a b c: adds nodes
		"service": (*cluster).service, // service 203.0.113.70 [local a b]: endpoints only on a, b
		"api":     (*cluster).serve,   // api a 10.0.0.9: a serves virtual addresses of the API
		"cordon":  change(func(n *l2announcer.Node) { n.Cordoned = true }),
		"return":  change(func(n *l2announcer.Node) { n.Cordoned, n.Ready, n.Excluded = false, true, false }),
		"unready": change(func(n *l2announcer.Node) { n.Ready = false }),
		"exclude": change(func(n *l2announcer.Node) { n.Excluded = true }),
		"boot":    (*cluster).boot,   // boot a: a boots; its Node still has the former boot ID
		"report":  (*cluster).report, // report a: the kubelet of a reports the new boot ID
		"routes":  (*cluster).routes,
	})
}

type cluster struct {
	t        *testing.T
	nodes    []l2announcer.Node
	services []l2announcer.Service
	api      map[string][]netip.Addr
	boots    map[string]string
}

func (c *cluster) add(args []string) string {
	for _, name := range args {
		c.nodes = append(c.nodes, l2announcer.Node{Name: name, Ready: true, BootID: "1"})
		c.boots[name] = "1"
	}
	return ""
}

func (c *cluster) service(args []string) string {
	s := l2announcer.Service{Local: len(args) > 1, Endpoints: scripttest.Words(args, "local")}
	for a := range strings.SplitSeq(args[0], ",") {
		s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
	}
	c.services = slices.DeleteFunc(c.services, func(o l2announcer.Service) bool { return slices.Equal(o.Addresses, s.Addresses) })
	c.services = append(c.services, s)
	return ""
}

func (c *cluster) serve(args []string) string {
	c.api[args[0]] = nil
	for _, a := range args[1:] {
		c.api[args[0]] = append(c.api[args[0]], netip.MustParseAddr(a))
	}
	return ""
}

// change returns a command that calls edit for each node of its arguments.
func change(edit func(*l2announcer.Node)) func(*cluster, []string) string {
	return func(c *cluster, args []string) string {
		for _, name := range args {
			i := slices.IndexFunc(c.nodes, func(n l2announcer.Node) bool { return n.Name == name })
			if i < 0 {
				c.t.Fatalf("no node %q", name)
			}
			edit(&c.nodes[i])
		}
		return ""
	}
}

func (c *cluster) boot(args []string) string {
	c.boots[args[0]] += "+"
	return ""
}

func (c *cluster) report(args []string) string {
	return change(func(n *l2announcer.Node) { n.BootID = c.boots[n.Name] })(c, args)
}

func (c *cluster) routes([]string) string {
	table := map[netip.Prefix][]string{}
	for name, boot := range c.boots {
		for _, r := range Plan(View{Self: name, BootID: boot, Nodes: c.nodes, Services: c.services, API: c.api[name]}) {
			table[r] = append(table[r], name)
		}
	}
	var out []string
	for r, via := range table {
		slices.Sort(via)
		out = append(out, fmt.Sprintf("%s via %s", r, strings.Join(via, " ")))
	}
	slices.Sort(out)
	if len(out) == 0 {
		return "no routes"
	}
	return strings.Join(out, "\n")
}

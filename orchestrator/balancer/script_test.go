package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). Like run, a script performs the actions of
// the state after each event and at the time that the state requests. The output is each change of
// the description and of the order of servers for new connections, and each action; in `wait` with
// the time since the start of the command. The test reports the results of probes by `answer`.
// `prefer` prints the servers of a node in their order.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *node { return &node{t: t} }, scripttest.Commands[*node]{
		"prefer":  (*node).prefer,  // prefer worker-1 endpoint URL [machines IP…] [own IP…]
		"servers": (*node).servers, // servers a b [offline o]: the balancer starts with them
		"answer":  (*node).answer,  // answer a ready|unready|down [b …]: results of probes
		"refuse":  (*node).refuse,  // refuse a: a refuses a connection
		"open":    (*node).open,    // open a: a client gets a connection to a
		"close":   (*node).close,   // close a: a connection to a ends
		"wait":    (*node).wait,    // wait 2s: prints what the balancer does in this time
	})
}

// node is a node with a balancer.
type node struct {
	t             *testing.T
	state         State
	start         time.Time // of the present command
	until         time.Time // of the next step
	order, detail string    // as printed last
	out           []string
}

// addressesOf parses addresses.
func addressesOf(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func (n *node) prefer(args []string) string {
	prepositions := []string{"endpoint", "machines", "own"}
	spec := nodespec.Spec{
		Node: nodespec.Node{
			Name: args[0], ControlPlane: slices.Contains(args, "own"),
			IPs: addressesOf(scripttest.Words(args, "own", prepositions...)...),
		},
		Endpoint:      strings.Join(scripttest.Words(args, "endpoint", prepositions...), ""),
		ControlPlanes: addressesOf(scripttest.Words(args, "machines", prepositions...)...),
	}
	servers, err := Servers(spec)
	if err != nil {
		return err.Error()
	}
	return strings.Join(servers, " ")
}

func (n *node) servers(args []string) string {
	offline := scripttest.Word(args, "offline")
	if offline != "" {
		args = args[:len(args)-2]
	}
	n.state = NewState(args, offline)
	return n.step()
}

// step performs the actions that are due now, and returns the output of the command.
func (n *node) step() string {
	if n.start.IsZero() {
		n.start = time.Now()
	}
	todo := n.state.Next(time.Now())
	n.until = todo.Until
	if works, detail := n.state.Describe(); detail != n.detail {
		if n.detail = detail; works != strings.HasPrefix(detail, "API server ") {
			n.t.Errorf("Describe returns works %t with the detail %q", works, detail)
		}
		n.print("%s", detail)
	}
	if order := strings.Join(n.state.Order(), " "); order != n.order {
		n.order = order
		n.print("new connections: %s", cmp.Or(strings.ReplaceAll(order, " ", ", "), "none"))
	}
	if todo.FirstReady {
		n.print("an API server is ready for the first time")
	}
	for _, s := range todo.Close {
		n.print("close the connections of %s", s)
	}
	if len(todo.Probe) > 0 {
		n.print("probe %s", strings.Join(todo.Probe, " "))
	}
	out := strings.Join(n.out, "\n")
	n.out, n.start = nil, time.Time{}
	return out
}

func (n *node) print(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if passed := time.Since(n.start); passed > 0 {
		line = fmt.Sprintf("%s: %s", passed, line)
	}
	n.out = append(n.out, line)
}

func (n *node) answer(args []string) string {
	for pair := range slices.Chunk(args, 2) {
		result, known := map[string]ProbeResult{
			"ready": {Reachable: true}, "unready": {Reachable: true, Problem: "500: etcd failed"}, "down": {Problem: "does not answer"},
		}[pair[1]]
		if !known {
			n.t.Fatalf("unknown result %q", pair[1])
		}
		n.state.ProbeDone(pair[0], result, time.Now())
	}
	return n.step()
}

func (n *node) refuse(args []string) string {
	n.state.ConnectFailed(args[0], "connect: connection refused")
	return n.step()
}

func (n *node) open(args []string) string {
	n.state.ConnOpened(args[0])
	return n.step()
}

func (n *node) close(args []string) string {
	n.state.ConnClosed(args[0])
	return n.step()
}

func (n *node) wait(args []string) string {
	d := scripttest.Duration(n.t, args[0])
	begin := time.Now()
	var out []string
	for end := begin.Add(d); ; {
		if n.until.IsZero() || n.until.After(end) {
			time.Sleep(time.Until(end))
			return strings.Join(out, "\n")
		}
		time.Sleep(time.Until(n.until))
		n.start = begin
		if line := n.step(); line != "" {
			out = append(out, line)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/relay"
)

// One command on several machines (--nodes). The command runs once per machine, as a separate tool
// that reaches its machine through the machine of the endpoint (docs/decisions/0022-relay.md) and
// whose output names the machine.

// manner is the way in which a command runs on several machines.
type manner int

const (
	// The command calls no machine, or reads or writes a local file for one machine.
	notAtAll manner = iota
	// The command only reads. It runs on all machines concurrently; each answer is printed as a
	// whole, in the order of the machines.
	atOnce
	following // it streams: it runs on all machines concurrently, and prints line by line
	inTurn    // it makes a change: it runs on one machine after the other, until the first failure
	single    // it makes a change from a file for one machine
	together  // it handles all machines itself (fleet)
)

// manners maps each command that supports --nodes to its manner.
var manners = map[string]manner{
	"get": atOnce, "services": atOnce, "logs": atOnce, "dmesg": atOnce, "events": atOnce, "audit list": atOnce, "audit verify": atOnce, "version": atOnce,
	"cat": atOnce, "ls": atOnce, "image list": atOnce, "etcd status": atOnce, "etcd members": atOnce, "etcd alarm list": atOnce, "trust list": atOnce, "nodes list": atOnce, "kubernetes suspended": atOnce, "upgrade status": atOnce, "show-config": atOnce, "config-history": atOnce,
	"health": following, "watch": following,
	"patch-config": inTurn, "confirm-config": inTurn, "service restart": inTurn, "image import": inTurn, "etcd defrag": inTurn, "etcd alarm disarm": inTurn, "upgrade": inTurn, "rollback": inTurn, "reboot": inTurn,
	"shutdown": inTurn, "reset": inTurn,
	"apply-config": single,
	"trust revoke": together, "trust rotate-ca": together, "trust rotate-key": together,
}

// A machine relays at most eight connections of one caller. A finished connection counts until both
// ends have closed it.
const (
	mostFollowed = 8 // concurrent machines if each call streams
	mostAtOnce   = 4 // concurrent machines if each call ends by itself
)

// nameOf returns the name of a command without the name of the tool: "trust revoke".
func nameOf(c *cobra.Command) string {
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
}

// mannerOf returns the manner of a command with its flags for this number of machines.
func mannerOf(c *cobra.Command, nodes int) (manner, error) {
	name := nameOf(c)
	how := manners[name]
	for _, flag := range []string{"follow", "wait"} {
		if on, err := c.Flags().GetBool(flag); err == nil && on && how == atOnce {
			how = following
		}
	}
	switch {
	case how == notAtAll:
		return how, usagef("%s: cannot be used with --nodes: it calls no machine, or reads input or writes output for one machine", name)
	case how == single && nodes > 1:
		return how, &exitError{code: exitUsage, err: fmt.Errorf("%s: cannot be used on several machines: each has its own configuration", name), hint: "`orlopctl patch-config` changes the same fields on several"}
	case how == following && nodes > mostFollowed:
		return how, usagef("%s: cannot watch %d machines: at most %d at the same time", name, nodes, mostFollowed)
	}
	return how, nil
}

// parseNodes parses the addresses of the machines and rejects duplicates.
func parseNodes(named []string) ([]string, error) {
	var nodes []string
	for _, name := range named {
		addr, err := relay.ParseTarget(name)
		if err != nil {
			return nil, usagef("--nodes: %w", err)
		}
		if slices.Contains(nodes, addr.String()) {
			return nil, usagef("--nodes: machine %s is named twice", addr)
		}
		nodes = append(nodes, addr.String())
	}
	return nodes, nil
}

// onNodes runs a command on each machine of --nodes. The error lists the machines that failed;
// their reasons are already printed.
func (t *tool) onNodes(c *cobra.Command) error {
	nodes, err := parseNodes(t.flags.nodes)
	if err != nil {
		return err
	}
	how, err := mannerOf(c, len(nodes))
	if err != nil {
		return err
	}
	name, chosen, endpoint, err := t.called()
	if err != nil {
		return err
	}
	if endpoint.CA == nil {
		return errOnlyFingerprint()
	}
	w := &way{endpoint: endpoint}
	defer w.close()
	ctx, stop := interruptible()
	defer stop()
	dialing, cancel := context.WithTimeout(ctx, t.timeout(usualTimeout))
	defer cancel()
	first, err := w.connected(dialing)
	if err != nil {
		return err
	}
	t.keepFresh(dialing, first, name, chosen)
	r := &round{ctx: ctx, tool: t, way: w, nodes: nodes, codes: make([]int, len(nodes)), called: len(nodes)}
	switch how {
	case atOnce:
		r.atOnce()
	case following:
		r.following()
	default:
		r.inTurn()
	}
	return r.outcome()
}

// way is the connection to the endpoint's machine, which relays to the other machines.
type way struct {
	endpoint client.Endpoint

	mu     sync.Mutex
	client *client.Client // nil before its first use
}

// to returns the endpoint of a machine behind the relay.
func (w *way) to(node string) client.Endpoint {
	return client.Endpoint{Address: node, Cert: w.endpoint.Cert, CA: w.endpoint.CA, Dialer: w.dial}
}

func (w *way) dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := w.connected(ctx)
	if err != nil {
		return nil, err
	}
	return c.Relay(ctx, address)
}

// connected returns the connection, and reconnects if it was lost: the endpoint's machine may be
// among the machines that reboot.
func (w *way) connected(ctx context.Context) (*client.Client, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client != nil && w.client.Connected() {
		return w.client, nil
	}
	w.closeLocked()
	var err error
	w.client, err = client.Dial(ctx, w.endpoint)
	return w.client, err
}

func (w *way) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeLocked()
}

func (w *way) closeLocked() {
	if w.client != nil {
		_ = w.client.Close() // no more data is sent
		w.client = nil
	}
}

// round is one run of a command on several machines.
type round struct {
	ctx    context.Context // ends with Ctrl-C
	tool   *tool
	way    *way
	nodes  []string
	codes  []int      // exit status per machine
	called int        // number of machines called, from the first on
	mu     sync.Mutex // serializes writes to the terminal
}

// run runs the command on one machine. Each line of its standard error starts with the machine.
func (r *round) run(i int, stdout io.Writer) {
	if r.ctx.Err() != nil {
		r.codes[i] = exitFailure
		return
	}
	stderr := &prefixed{to: locked{&r.mu, r.tool.stderr}, prefix: r.nodes[i] + ": "}
	one := &tool{stdin: noInput{}, stdout: stdout, stderr: stderr, node: r.nodes[i], way: r.way}
	r.codes[i] = one.run(r.tool.args)
	stderr.end()
}

// atOnce prints the answers of the machines in order, each as a whole.
func (r *round) atOnce() {
	texts, done := make([]bytes.Buffer, len(r.nodes)), make([]chan struct{}, len(r.nodes))
	places := make(chan struct{}, mostAtOnce)
	for i := range r.nodes {
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			places <- struct{}{}
			defer func() { <-places }()
			r.to(i, &texts[i], "  ")
		}()
	}
	for i, node := range r.nodes {
		<-done[i]
		text := texts[i].String()
		if r.tool.human() && text != "" {
			text = node + ":\n" + text
		}
		_, _ = io.WriteString(locked{&r.mu, r.tool.stdout}, text) // see println
	}
}

// following prints each line as it arrives, with the machine as prefix.
func (r *round) following() {
	var all sync.WaitGroup
	for i, node := range r.nodes {
		all.Go(func() { r.to(i, locked{&r.mu, r.tool.stdout}, node+": ") })
	}
	all.Wait()
}

// inTurn runs the command on the next machine after a machine has succeeded.
func (r *round) inTurn() {
	for i, node := range r.nodes {
		if r.tool.human() {
			r.tool.println(node + ":")
		}
		r.to(i, locked{&r.mu, r.tool.stdout}, "  ")
		if r.codes[i] != exitOK {
			r.called = i + 1
			return
		}
	}
}

// to runs the command on one machine, with a prefix before each line for people. Documents in JSON
// and YAML name their machine themselves.
func (r *round) to(i int, stdout io.Writer, prefix string) {
	if !r.tool.human() {
		r.run(i, stdout)
		return
	}
	out := &prefixed{to: stdout, prefix: prefix}
	r.run(i, out)
	out.end()
}

// outcome returns nil if all machines have succeeded. Otherwise the exit status is that of the
// first failed machine.
func (r *round) outcome() error {
	var failed []string
	code := exitOK
	for i, node := range r.nodes[:r.called] {
		if r.codes[i] != exitOK {
			failed = append(failed, node)
			if code == exitOK {
				code = r.codes[i]
			}
		}
	}
	if code == exitOK {
		return nil
	}
	text := fmt.Sprintf("%d of %d machines failed: %s", len(failed), len(r.nodes), strings.Join(failed, ", "))
	if rest := r.nodes[r.called:]; len(rest) > 0 {
		text += "; not called after that: " + strings.Join(rest, ", ")
	}
	return &exitError{code: code, err: errors.New(text)}
}

// noInput is the standard input of a command that runs on several machines.
type noInput struct{}

func (noInput) Read([]byte) (int, error) {
	return 0, usagef("it cannot be read once for each machine; name a file")
}

// locked serializes writes with a lock.
type locked struct {
	mu *sync.Mutex
	to io.Writer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

// prefixed writes whole lines, each with a prefix.
type prefixed struct {
	to     io.Writer
	prefix string
	part   []byte // beginning of an incomplete line
}

func (l *prefixed) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	end := bytes.LastIndexByte(l.part, '\n') + 1
	var out []byte
	for line := range bytes.Lines(l.part[:end]) {
		out = append(append(out, l.prefix...), line...)
	}
	l.part = append([]byte(nil), l.part[end:]...)
	if len(out) > 0 {
		if _, err := l.to.Write(out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// end writes the last line if it has no line break.
func (l *prefixed) end() {
	if len(l.part) > 0 {
		_, _ = l.Write([]byte{'\n'}) // see println
	}
}

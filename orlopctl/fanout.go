package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
)

// A command on several machines (--nodes). The command runs once per machine, as a separate tool
// that reaches its machine through the machine of the endpoint (docs/decisions/0022-relay.md). The
// output of each run names the machine.

// fanoutKey is the annotation of a command with its api.Fanout. A command without it calls no
// machine, or reads or writes a local file for one machine.
const fanoutKey = "fanout"

// calls is the annotation of a command that makes a call: it runs on several machines in the manner
// of the method.
func calls(method string) map[string]string { return fanout(api.FanoutOf(method)) }

// fanout is the annotation of a command that runs on several machines in another manner than the
// calls that it makes.
func fanout(f api.Fanout) map[string]string { return map[string]string{fanoutKey: f.String()} }

// fanoutOf returns the manner of a command without its flags.
func fanoutOf(c *cobra.Command) api.Fanout {
	return cmp.Or(api.Fanout(api.Fanout_value[c.Annotations[fanoutKey]]), api.Fanout_FANOUT_NONE)
}

// nameOf returns the name of a command without the name of the tool: "trust revoke".
func nameOf(c *cobra.Command) string {
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
}

// fanoutModeOf returns the manner of a command with its flags for this number of machines.
func fanoutModeOf(c *cobra.Command, nodes int) (api.Fanout, error) {
	name := nameOf(c)
	how := fanoutOf(c)
	for _, flag := range []string{"follow", "wait"} {
		if on, err := c.Flags().GetBool(flag); err == nil && on && how == api.Fanout_FANOUT_PARALLEL {
			how = api.Fanout_FANOUT_STREAMING
		}
	}
	switch {
	case how == api.Fanout_FANOUT_NONE:
		return how, exit.Usagef("%s: cannot be used with --nodes: it calls no machine, or reads input or writes output for one machine", name)
	case how == api.Fanout_FANOUT_SINGLE && nodes > 1:
		return how, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: cannot be used on several machines: each has its own configuration", name), Hint: "`orlopctl patch-config` changes the same fields on several"}
	case how == api.Fanout_FANOUT_STREAMING && nodes > connect.MaxStreams:
		return how, exit.Usagef("%s: cannot watch %d machines: at most %d at the same time", name, nodes, connect.MaxStreams)
	}
	return how, nil
}

// onNodes runs a command on each machine of --nodes. The error lists the machines that failed;
// their reasons are already printed.
func (t *tool) onNodes(c *cobra.Command) error {
	nodes, err := connect.ParseNodes(t.conn.Flags.Nodes)
	if err != nil {
		return err
	}
	how, err := fanoutModeOf(c, len(nodes))
	if err != nil {
		return err
	}
	name, chosen, endpoint, err := t.conn.Called()
	if err != nil {
		return err
	}
	if endpoint.CA == nil {
		return connect.ErrOnlyFingerprint("--nodes")
	}
	w := connect.NewRelay(endpoint)
	defer w.Close()
	ctx, stop := connect.Interruptible()
	defer stop()
	dialing, cancel := context.WithTimeout(ctx, t.conn.Timeout(connect.DefaultTimeout))
	defer cancel()
	first, err := w.Client(dialing)
	if err != nil {
		return err
	}
	t.conn.KeepFresh(dialing, first, name, chosen)
	r := &round{ctx: ctx, tool: t, relay: w, nodes: nodes, codes: make([]int, len(nodes)), called: len(nodes)}
	switch how {
	case api.Fanout_FANOUT_PARALLEL:
		r.runParallel()
	case api.Fanout_FANOUT_STREAMING:
		r.runStreaming()
	default:
		r.runSequential()
	}
	return r.outcome()
}

// round is one run of a command on several machines.
type round struct {
	ctx    context.Context // ends with Ctrl-C
	tool   *tool
	relay  *connect.Relay
	nodes  []string
	codes  []int      // exit status per machine
	called int        // number of machines called, from the first on
	mu     sync.Mutex // serializes writes to the terminal
}

// run runs the command on one machine. Each line of its standard error starts with the machine.
func (r *round) run(i int, stdout io.Writer) {
	if r.ctx.Err() != nil {
		r.codes[i] = exit.Failure
		return
	}
	stderr := &prefixed{to: locked{&r.mu, r.tool.ios.Err}, prefix: r.nodes[i] + ": "}
	ios := &iostreams.Streams{In: noInput{}, Out: stdout, Err: stderr, Node: r.nodes[i]}
	one := &tool{ios: ios, conn: connect.NewRelayed(ios, r.relay, r.nodes[i])}
	r.codes[i] = one.run(r.tool.args)
	stderr.end()
}

// runParallel prints the answers of the machines in order, each as a whole.
func (r *round) runParallel() {
	texts, done := make([]bytes.Buffer, len(r.nodes)), make([]chan struct{}, len(r.nodes))
	running := make(chan struct{}, connect.MaxParallel)
	for i := range r.nodes {
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			running <- struct{}{}
			defer func() { <-running }()
			r.to(i, &texts[i], "  ")
		}()
	}
	for i, node := range r.nodes {
		<-done[i]
		text := texts[i].String()
		if r.tool.ios.Human() && text != "" {
			text = node + ":\n" + text
		}
		_, _ = io.WriteString(locked{&r.mu, r.tool.ios.Out}, text) // see Streams.Println
	}
}

// runStreaming prints each line as it arrives, with the machine as prefix.
func (r *round) runStreaming() {
	var all sync.WaitGroup
	for i, node := range r.nodes {
		all.Go(func() { r.to(i, locked{&r.mu, r.tool.ios.Out}, node+": ") })
	}
	all.Wait()
}

// runSequential runs the command on the next machine after a machine has succeeded.
func (r *round) runSequential() {
	for i, node := range r.nodes {
		if r.tool.ios.Human() {
			r.tool.ios.Println(node + ":")
		}
		r.to(i, locked{&r.mu, r.tool.ios.Out}, "  ")
		if r.codes[i] != exit.OK {
			r.called = i + 1
			return
		}
	}
}

// to runs the command on one machine, with a prefix before each line for people. Documents in JSON
// and YAML name their machine themselves.
func (r *round) to(i int, stdout io.Writer, prefix string) {
	if !r.tool.ios.Human() {
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
	code := exit.OK
	for i, node := range r.nodes[:r.called] {
		if r.codes[i] != exit.OK {
			failed = append(failed, node)
			if code == exit.OK {
				code = r.codes[i]
			}
		}
	}
	if code == exit.OK {
		return nil
	}
	text := fmt.Sprintf("%d of %d machines failed: %s", len(failed), len(r.nodes), strings.Join(failed, ", "))
	if rest := r.nodes[r.called:]; len(rest) > 0 {
		text += "; not called after that: " + strings.Join(rest, ", ")
	}
	return &exit.Error{Code: code, Err: errors.New(text)}
}

// noInput is the standard input of a command that runs on several machines.
type noInput struct{}

func (noInput) Read([]byte) (int, error) {
	return 0, exit.Usagef("it cannot be read once for each machine; name a file")
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
		_, _ = l.Write([]byte{'\n'}) // see Streams.Println
	}
}

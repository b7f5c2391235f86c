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

// This file runs a command on several machines (--nodes). The command runs once per machine, as a
// separate instance of the tool. Each instance reaches its machine through the machine of the
// endpoint (docs/decisions/0022-relay.md). The output of each instance names the machine.

// fanoutKey is the annotation that holds the api.Fanout of a command. A command without this
// annotation calls no machine, or reads or writes a local file for a single machine; it does not
// support --nodes.
const fanoutKey = "fanout"

// calls returns the annotation of a command that calls this method. With --nodes, the command runs
// in the fanout mode of the method.
func calls(method string) map[string]string { return fanout(api.FanoutOf(method)) }

// fanout returns the annotation of a command that runs in another fanout mode than the methods that
// it calls.
func fanout(f api.Fanout) map[string]string { return map[string]string{fanoutKey: f.String()} }

// fanoutOf returns the fanout mode of a command. It ignores the flags. The mode of a command
// without an annotation is FANOUT_NONE.
func fanoutOf(c *cobra.Command) api.Fanout {
	return cmp.Or(api.Fanout(api.Fanout_value[c.Annotations[fanoutKey]]), api.Fanout_FANOUT_NONE)
}

// nameOf returns the name of a command without the name of the tool: "trust revoke".
func nameOf(c *cobra.Command) string {
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
}

// fanoutModeOf returns the fanout mode of a command with its flags. It returns an error if the
// command cannot run on this number of machines.
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

// onNodes runs a command on each machine of --nodes. It returns an error that lists the failed
// machines. The reason of each failure is already printed.
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

// round is a run of a command on several machines, with the results.
type round struct {
	ctx    context.Context // ends with Ctrl-C
	tool   *tool
	relay  *connect.Relay
	nodes  []string
	codes  []int      // exit status per machine
	called int        // number of called machines; they are the first of nodes
	mu     sync.Mutex // serializes writes to the terminal
}

// run runs the command on machine i and stores its exit status. Each line of the standard error
// starts with the address of the machine.
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

// runParallel runs the command on all machines, on at most connect.MaxParallel of them at the same
// time. It prints the output of each machine as a whole, in the order of the machines.
func (r *round) runParallel() {
	texts, done := make([]bytes.Buffer, len(r.nodes)), make([]chan struct{}, len(r.nodes))
	running := make(chan struct{}, connect.MaxParallel)
	for i := range r.nodes {
		done[i] = make(chan struct{})
		go func() {
			defer close(done[i])
			running <- struct{}{}
			defer func() { <-running }()
			r.runPrefixed(i, &texts[i], "  ")
		}()
	}
	for i, node := range r.nodes {
		<-done[i]
		text := texts[i].String()
		if r.tool.ios.Human() && text != "" {
			text = node + ":\n" + text
		}
		// An error is ignored, as in Streams.Println.
		_, _ = io.WriteString(locked{&r.mu, r.tool.ios.Out}, text)
	}
}

// runStreaming runs the command on all machines at the same time. It prints each line as it
// arrives, with the machine as prefix.
func (r *round) runStreaming() {
	var all sync.WaitGroup
	for i, node := range r.nodes {
		all.Go(func() { r.runPrefixed(i, locked{&r.mu, r.tool.ios.Out}, node+": ") })
	}
	all.Wait()
}

// runSequential runs the command on the machines in order. It stops after the first failure.
func (r *round) runSequential() {
	for i, node := range r.nodes {
		if r.tool.ios.Human() {
			r.tool.ios.Println(node + ":")
		}
		r.runPrefixed(i, locked{&r.mu, r.tool.ios.Out}, "  ")
		if r.codes[i] != exit.OK {
			r.called = i + 1
			return
		}
	}
}

// runPrefixed runs the command on machine i. Each line of a human-readable format gets the prefix.
// Documents in JSON and YAML get none, because each of them contains the name of its machine.
func (r *round) runPrefixed(i int, stdout io.Writer, prefix string) {
	if !r.tool.ios.Human() {
		r.run(i, stdout)
		return
	}
	out := &prefixed{to: stdout, prefix: prefix}
	r.run(i, out)
	out.end()
}

// outcome returns nil if all machines have succeeded. Otherwise it returns an error with the exit
// status of the first failed machine.
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

// noInput is the standard input of a command that runs on several machines. Each read fails.
type noInput struct{}

func (noInput) Read([]byte) (int, error) {
	return 0, exit.Usagef("it cannot be read once for each machine; name a file")
}

// locked is a writer that holds a lock during each write.
type locked struct {
	mu *sync.Mutex
	to io.Writer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

// prefixed is a writer of whole lines. It adds a prefix to each line.
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
		// An error is ignored, as in Streams.Println.
		_, _ = l.Write([]byte{'\n'})
	}
}

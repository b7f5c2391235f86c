package drain

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
)

// reserve is the time that the orchestrator has to start and to undo a drain, in addition to the
// timeout for the pods.
const reserve = 30 * time.Second

// maxStates is the number of drains that the topic retains. The oldest ended drain is removed
// first.
const maxStates = 16

// Deps is the environment of a Drainer.
type Deps struct {
	// Config returns the active configuration; nil if there is none.
	Config func() *config.Config
	// Removed reports whether the machine was removed from its cluster: it has no pods to evict and
	// no API server to call.
	Removed func() bool
	// Stopping is canceled at shutdown. The drained node then stays cordoned until the next boot.
	Stopping context.Context
	// Command runs a command of the orchestrator.
	Command nodespec.Command
	// Event adds an event of the package to the machine's events.
	Event func(kind, message string)
}

// Order is a drain that an operation needs.
type Order struct {
	Operation string // for example "reboot"
	By        string // the caller that requested the operation
	// Node is the name of another machine, which is drained because it is removed from the cluster.
	// If Node is empty, this machine is drained.
	Node string
	// Policy is the policy of the caller. The configuration replaces an empty policy or timeout.
	Policy config.Drain
}

// State is a drain: an element of topic "drain".
type State struct {
	Node      string              `json:"node"`
	Operation string              `json:"operation"`
	By        string              `json:"by"`
	Policy    string              `json:"policy"`
	Phase     nodespec.DrainPhase `json:"phase"`
	Started   time.Time           `json:"started"`
	Deadline  time.Time           `json:"deadline"`
	nodespec.DrainProgress
}

// Drainer drains nodes. All methods are safe for concurrent use.
type Drainer struct {
	deps   Deps
	states *cell.Cell[[]State]

	mu      sync.Mutex
	running map[string]*run // by the node
}

// run is a drain that runs.
type run struct {
	cancel context.CancelFunc

	// guarded by Drainer.mu
	givenUpBy string
	ended     bool // the command has ended, so the drain cannot be given up any more
}

// New returns a drainer.
func New(d Deps) *Drainer {
	return &Drainer{deps: d, states: cell.New([]State{}), running: map[string]*run{}}
}

// States returns the cell with the drains of this boot, the newest last. It has only the last drain
// of each node.
func (d *Drainer) States() *cell.Cell[[]State] { return d.states }

// Wanted reports whether a drain of this machine would evict pods, with the policy of a caller.
func (d *Drainer) Wanted(policy config.Drain) bool {
	_, drains := d.plan(Order{Policy: policy})
	return drains
}

// plan returns the policy of a drain, and reports whether pods are evicted at all.
func (d *Drainer) plan(o Order) (config.Drain, bool) {
	active := d.deps.Config()
	if active == nil || active.Cluster == nil || d.deps.Removed() {
		return config.Drain{}, false
	}
	policy := choose(o, active.Machine.Spec.Upgrade.Drain)
	return policy, policy.Policy != config.DrainNone
}

// Drain drains a node for an operation, if the policy requires a drain, and reports whether it did.
// It ends early only if ctx ends or a caller gives it up. After an error the node is as before, and
// the operation must not happen.
func (d *Drainer) Drain(ctx context.Context, o Order) (done bool, err error) {
	policy, drains := d.plan(o)
	if !drains {
		return false, nil
	}
	node := d.nameOf(o.Node)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	now := &run{cancel: cancel}
	if err := d.begin(node, now); err != nil {
		return false, err
	}
	defer d.end(node)
	started := time.Now()
	d.addState(State{
		Node: node, Operation: o.Operation, By: o.By, Policy: string(policy.Policy), Phase: nodespec.PhaseRunning,
		Started: started.UTC().Truncate(time.Second), Deadline: started.Add(time.Duration(policy.Timeout)).UTC().Truncate(time.Second),
	})
	d.deps.Event("operation", fmt.Sprintf("drain node %s for its %s, asked by %s, with policy %s, for %v at most", node, o.Operation, o.By, policy.Policy, time.Duration(policy.Timeout)))
	out, failed := d.command(ctx, o, nodespec.DrainRequest{
		Operation: o.Operation, By: o.By, Timeout: time.Duration(policy.Timeout),
		Refuse: policy.Policy == config.DrainRespect, Delete: policy.Policy == config.DrainForce,
	}, func(p nodespec.DrainProgress) { d.progress(node, p) })
	phase, err := outcome(policy, d.decide(now), out, failed)
	d.conclude(node, phase, out, failed)
	// The command may have ended before it could undo the drain.
	if !d.leaves(o) && (phase == nodespec.PhaseGivenUp || phase == nodespec.PhaseRefused && !out.Refused) {
		d.undo(node, o)
	}
	return true, err
}

// Undo ends the drain of a node because the operation that needed the drain did not happen.
func (d *Drainer) Undo(o Order) {
	node := d.nameOf(o.Node)
	states, _ := d.states.Get()
	if d.leaves(o) || !slices.ContainsFunc(states, func(s State) bool {
		return s.Node == node && (s.Phase == nodespec.PhaseDrained || s.Phase == nodespec.PhaseIncomplete)
	}) {
		return
	}
	d.undo(node, o)
	d.update(node, func(s *State) { s.Phase = nodespec.PhaseUndone })
}

// leaves reports whether the drained machine shuts down: then its node stays cordoned until the
// next boot.
func (d *Drainer) leaves(o Order) bool { return o.Node == "" && d.deps.Stopping.Err() != nil }

// Cancel gives up the running drain of a node, or of this machine if node is empty. The operation
// that needs the drain does not happen.
func (d *Drainer) Cancel(node, by string) error {
	node = d.nameOf(node)
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.running[node]
	if now == nil || now.ended {
		return status.Errorf(codes.FailedPrecondition, "drain: none runs for node %s; `orlopctl get drain` lists the drains of this machine", node)
	}
	now.givenUpBy = by
	now.cancel()
	return nil
}

// nameOf returns the name of a node, or of this machine if node is empty.
func (d *Drainer) nameOf(node string) string {
	if node != "" {
		return node
	}
	if active := d.deps.Config(); active != nil {
		return active.Machine.Metadata.Name
	}
	return ""
}

// begin records a drain that runs. A node has a single drain at a time.
func (d *Drainer) begin(node string, now *run) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running[node] != nil {
		return fmt.Errorf("node %s is drained for another operation already: `orlopctl get drain` shows it, and `orlopctl drain cancel` gives it up", node)
	}
	d.running[node] = now
	return nil
}

func (d *Drainer) end(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.running, node)
}

// decide ends the time in which a drain can be given up. It returns the caller that has given the
// drain up, or "" if no caller has.
func (d *Drainer) decide(now *run) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	now.ended = true
	return now.givenUpBy
}

// progress reports a change of the progress. It adds an event if other pods block the drain, or if
// a problem begins or ends.
func (d *Drainer) progress(node string, p nodespec.DrainProgress) {
	states, _ := d.states.Get()
	i := slices.IndexFunc(states, func(s State) bool { return s.Node == node })
	if i >= 0 && (!slices.Equal(names(states[i].Blocking()), names(p.Blocking())) || (states[i].Problem == "") != (p.Problem == "")) {
		d.deps.Event("drain", "node "+node+": "+describe(p))
	}
	d.update(node, func(s *State) { s.DrainProgress = p })
}

// names returns the names of pods.
func names(pods []nodespec.DrainPod) (all []string) {
	for _, p := range pods {
		all = append(all, p.Pod)
	}
	return all
}

// conclude records the end of a drain.
func (d *Drainer) conclude(node string, phase nodespec.DrainPhase, out nodespec.DrainResult, failed error) {
	d.update(node, func(s *State) {
		s.Phase = phase
		if failed == nil || out.Remaining() != "" {
			s.DrainProgress = out.DrainProgress
		}
		if failed != nil && s.Problem == "" {
			s.Problem = failed.Error()
		}
	})
	switch {
	case failed != nil && phase != nodespec.PhaseGivenUp:
		d.deps.Event("failure", fmt.Sprintf("node %s: cannot evict the pods: %v", node, failed))
	case phase == nodespec.PhaseDrained:
		d.deps.Event("operation", fmt.Sprintf("%d pods evicted", out.Evicted))
	case phase == nodespec.PhaseIncomplete:
		d.deps.Event("operation", fmt.Sprintf("%d pods evicted; %s", out.Evicted, out.Remaining()))
	}
}

// undo undoes a drain. If this fails, the drain expires, and the node undoes it by itself.
func (d *Drainer) undo(node string, o Order) {
	request := nodespec.DrainRequest{Operation: o.Operation, By: o.By, Timeout: reserve, Undo: true}
	if _, err := d.command(context.WithoutCancel(d.deps.Stopping), o, request, func(nodespec.DrainProgress) {}); err != nil {
		d.deps.Event("failure", fmt.Sprintf("cannot uncordon node %s: %v; the node does so by itself within 11 minutes of the API server, or use `kubectl uncordon %s`", node, err, node))
	}
}

// command runs the orchestrator's command, and passes each progress message to the function report.
func (d *Drainer) command(ctx context.Context, o Order, request nodespec.DrainRequest, report func(nodespec.DrainProgress)) (nodespec.DrainResult, error) {
	ctx, cancel := context.WithTimeout(ctx, request.Timeout+reserve)
	defer cancel()
	user := uint32(0) // root, which can read the certificate of the kubelet
	if request.Node = o.Node; o.Node != "" {
		user = paths.UserControllers
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nodespec.DrainResult{}, fmt.Errorf("drain: cannot make pipe: %w", err)
	}
	var reading sync.WaitGroup
	reading.Go(panics.Guarded("progress of a drain", func() { receive(from, report) }))
	out, err := nodespec.Run[nodespec.DrainResult](ctx, d.deps.Command, user, "drain", request, to)
	// no data is lost: the command has ended
	_ = to.Close()
	reading.Wait()
	_ = from.Close()
	return out, err
}

// maxLine is the largest length of a progress message, in bytes.
const maxLine = 256 << 10

// receive passes each progress message of a stream to the function report. A message is a line of
// JSON. After an invalid or too long line, receive ignores the rest of the stream.
func receive(from io.Reader, report func(nodespec.DrainProgress)) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var p nodespec.DrainProgress
		if json.Unmarshal(lines.Bytes(), &p) != nil {
			break
		}
		report(p)
	}
	_, _ = io.Copy(io.Discard, from) // the writer must not block
}

// addState adds the state of a drain that begins.
func (d *Drainer) addState(s State) {
	d.states.Update(func(all []State) []State {
		all = slices.DeleteFunc(slices.Clone(all), func(old State) bool { return old.Node == s.Node })
		for len(all) >= maxStates {
			i := slices.IndexFunc(all, func(old State) bool { return old.Phase != nodespec.PhaseRunning })
			if i < 0 {
				break
			}
			all = slices.Delete(all, i, i+1)
		}
		return append(all, s)
	})
}

// update changes the state of the drain of a node.
func (d *Drainer) update(node string, change func(*State)) {
	d.states.Update(func(all []State) []State {
		all = slices.Clone(all)
		for i := range all {
			if all[i].Node == node {
				change(&all[i])
			}
		}
		return all
	})
}

package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// machine is machine "a" with a fake orchestrator.
type machine struct {
	*Drainer
	mu     sync.Mutex
	lines  []string // the commands of the orchestrator and the events
	policy config.Drain
	// answer performs a drain in place of the orchestrator: it can report progress, and returns the
	// result. If it is nil, each drain is complete at once.
	answer func(ctx context.Context, report func(nodespec.DrainProgress)) (nodespec.DrainResult, error)
}

func newMachine(policy config.DrainPolicy) *machine {
	m := &machine{policy: config.Drain{Policy: policy, Timeout: config.Duration(time.Minute)}}
	m.Drainer = New(Deps{
		Config: func() *config.Config {
			c := &config.Config{Cluster: &config.Cluster{}}
			c.Machine.Metadata.Name, c.Machine.Spec.Upgrade.Drain = "a", m.policy
			return c
		},
		Removed: func() bool { return false }, Stopping: context.Background(),
		Command: m.command,
		Event:   func(kind, message string) { m.log("%s: %s", kind, message) },
	})
	return m
}

func (m *machine) log(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, fmt.Sprintf(format, args...))
}

// taken returns the lines since the last call of taken.
func (m *machine) taken() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := strings.Join(m.lines, "\n")
	m.lines = nil
	return text
}

func (m *machine) command(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error) {
	r := request.(nodespec.DrainRequest)
	m.log("%s as %d: node %q, undo %t, refuse %t, delete %t, %v", command, uid, r.Node, r.Undo, r.Refuse, r.Delete, r.Timeout)
	if r.Undo || m.answer == nil {
		return []byte("{}"), nil
	}
	out := json.NewEncoder(files[0])
	result, err := m.answer(ctx, func(p nodespec.DrainProgress) {
		if err := out.Encode(p); err != nil {
			panic(err)
		}
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

// now returns the states of all drains.
func (m *machine) now() string {
	var all []string
	states, _ := m.States().Get()
	for _, s := range states {
		all = append(all, fmt.Sprintf("%s %s %s by %s with %s: %d evicted; %s", s.Node, s.Phase, s.Operation, s.By, s.Policy, s.Evicted, s.Remaining()))
	}
	return strings.Join(all, "\n")
}

var blocked = nodespec.DrainProgress{Evicted: 2, Left: 1, Pods: []nodespec.DrainPod{{Pod: "n/web", State: nodespec.DrainBlocked, Budget: "web", Message: "The disruption budget web needs 1 healthy pods and has 1 currently"}}}

// TestOutcome checks the table of the function outcome: the phase and the error for each policy and
// result. If the command failed and the operation does not proceed, Drain undoes the drain. A
// command that refuses a drain has already undone it. If the operation proceeds and is cancelled
// later, Undo undoes the drain.
func TestOutcome(t *testing.T) {
	const undo = "\ndrain as 0: node \"\", undo true, refuse false, delete false, 30s"
	failed := errors.New("killed")
	for name, test := range map[string]struct {
		policy config.DrainPolicy
		out    nodespec.DrainResult
		failed error
		phase  nodespec.DrainPhase
		says   string
		undone bool
	}{
		"respect, complete":   {config.DrainRespect, nodespec.DrainResult{}, nil, nodespec.PhaseDrained, "", false},
		"respect, blocked":    {config.DrainRespect, nodespec.DrainResult{DrainProgress: blocked, Refused: true}, nil, nodespec.PhaseRefused, "drain not complete within 1m0s: pod n/web: must stay", false},
		"respect, incomplete": {config.DrainRespect, nodespec.DrainResult{DrainProgress: nodespec.DrainProgress{Left: 1, Pods: []nodespec.DrainPod{{Pod: "n/web", State: nodespec.DrainEnding}}}}, nil, nodespec.PhaseIncomplete, "", false},
		"respect, failed":     {config.DrainRespect, nodespec.DrainResult{}, failed, nodespec.PhaseRefused, "cannot evict the pods: killed", true},
		"timeout, complete":   {config.DrainTimeout, nodespec.DrainResult{}, nil, nodespec.PhaseDrained, "", false},
		"timeout, blocked":    {config.DrainTimeout, nodespec.DrainResult{DrainProgress: blocked}, nil, nodespec.PhaseIncomplete, "", false},
		"timeout, failed":     {config.DrainTimeout, nodespec.DrainResult{}, failed, nodespec.PhaseIncomplete, "", false},
		"force, failed":       {config.DrainForce, nodespec.DrainResult{}, failed, nodespec.PhaseIncomplete, "", false},
	} {
		m := newMachine(test.policy)
		m.answer = func(context.Context, func(nodespec.DrainProgress)) (nodespec.DrainResult, error) {
			return test.out, test.failed
		}
		done, err := m.Drain(t.Context(), Order{Operation: "reboot", By: "dora"})
		if !done || (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %t, %v", name, done, err)
		}
		if got := m.now(); !strings.HasPrefix(got, "a "+string(test.phase)+" reboot by dora with "+string(test.policy)) {
			t.Errorf("%s: %s", name, got)
		}
		if got := m.taken(); strings.Contains(got, undo) != test.undone {
			t.Errorf("%s: %s", name, got)
		}
		// The operation is cancelled after the drain.
		m.Undo(Order{Operation: "reboot", By: "dora"})
		if proceeds := test.says == ""; strings.Contains("\n"+m.taken(), undo) != proceeds || strings.Contains(m.now(), string(nodespec.PhaseUndone)) != proceeds {
			t.Errorf("%s: states after the undo: %s", name, m.now())
		}
	}
}

// TestPolicy checks in which cases Drain drains a node, and with which policy. The policy of the
// caller takes precedence over the configuration. Another machine is drained only if the caller
// gives a policy.
func TestPolicy(t *testing.T) {
	for name, test := range map[string]struct {
		configured config.DrainPolicy
		order      Order
		want       string
	}{
		"policy none configured":                   {config.DrainNone, Order{}, ""},
		"policy configured":                        {config.DrainRespect, Order{}, `drain as 0: node "", undo false, refuse true, delete false, 1m0s`},
		"policy of the caller":                     {config.DrainRespect, Order{Policy: config.Drain{Policy: config.DrainForce, Timeout: config.Duration(time.Hour)}}, `drain as 0: node "", undo false, refuse false, delete true, 1h0m0s`},
		"policy none of the caller":                {config.DrainRespect, Order{Policy: config.Drain{Policy: config.DrainNone}}, ""},
		"another machine, no policy of the caller": {config.DrainRespect, Order{Node: "b"}, ""},
		"another machine, policy of the caller":    {config.DrainNone, Order{Node: "b", Policy: config.Drain{Policy: config.DrainTimeout}}, fmt.Sprintf(`drain as %d: node "b", undo false, refuse false, delete false, 1m0s`, paths.UserControllers)},
		"another machine, only a timeout":          {config.DrainNone, Order{Node: "b", Policy: config.Drain{Timeout: 1}}, ""},
	} {
		m := newMachine(test.configured)
		test.order.Operation, test.order.By = "reboot", "dora"
		done, err := m.Drain(t.Context(), test.order)
		lines := m.taken()
		if err != nil || done != (test.want != "") || !strings.Contains(lines, test.want) || !done && (lines != "" || m.now() != "") {
			t.Errorf("%s: %t, %v, %s", name, done, err, lines)
		}
		if test.order.Node == "" && m.Wanted(test.order.Policy) != done {
			t.Errorf("%s: Wanted returns %t", name, !done)
		}
	}
	for name, change := range map[string]func(*Deps){
		"no configuration": func(d *Deps) { d.Config = func() *config.Config { return nil } },
		"no cluster":       func(d *Deps) { d.Config = func() *config.Config { return &config.Config{} } },
		"removed":          func(d *Deps) { d.Removed = func() bool { return true } },
	} {
		m := newMachine(config.DrainRespect)
		change(&m.Drainer.deps)
		if done, err := m.Drain(t.Context(), Order{Policy: config.Drain{Policy: config.DrainForce}}); done || err != nil || m.taken() != "" {
			t.Errorf("%s: %t, %v", name, done, err)
		}
	}
}

// TestProgress checks the progress of a drain. The state of the drain lists the remaining pods with
// their disruption budgets. An event is added for each change of the pods that block the drain.
// During the drain, a second drain of the node is rejected, and a caller can give the drain up.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(config.DrainTimeout)
		next := make(chan nodespec.DrainProgress)
		m.answer = func(ctx context.Context, tell func(nodespec.DrainProgress)) (nodespec.DrainResult, error) {
			for {
				select {
				case p := <-next:
					tell(p)
				case <-ctx.Done():
					return nodespec.DrainResult{}, ctx.Err()
				}
			}
		}
		if err := m.Cancel("", "eve"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "none runs for node a") {
			t.Errorf("%v", err)
		}
		ended := make(chan error, 1)
		client, leave := context.WithCancel(t.Context())
		go func() {
			_, err := m.Drain(context.WithoutCancel(client), Order{Operation: "upgrade", By: "dora"})
			ended <- err
		}()
		leave()
		ending := nodespec.DrainProgress{Evicted: 2, Left: 2, Pods: []nodespec.DrainPod{{Pod: "n/a", State: nodespec.DrainEnding}, {Pod: "n/b", State: nodespec.DrainEnding}}}
		away := blocked
		away.Problem = "cannot read the node: connection refused"
		for _, p := range []nodespec.DrainProgress{ending, blocked, blocked, away} {
			next <- p
			m.await(t, p)
		}
		if got, want := m.now(), "a running upgrade by dora with timeout: 2 evicted; "+away.Remaining(); got != want {
			t.Errorf("%s", got)
		}
		const want = `operation: drain node a for its upgrade, asked by dora, with policy timeout, for 1m0s at most
drain as 0: node "", undo false, refuse false, delete false, 1m0s
drain: node a: 2 pods evicted, 1 left; pod n/web: must stay: The disruption budget web needs 1 healthy pods and has 1 currently
drain: node a: 2 pods evicted, 1 left; pod n/web: must stay: The disruption budget web needs 1 healthy pods and has 1 currently`
		if got := m.taken(); got != want {
			t.Errorf("%s", got)
		}
		if _, err := m.Drain(t.Context(), Order{Operation: "reboot", By: "fay"}); err == nil || !strings.Contains(err.Error(), "drained for another operation already") {
			t.Errorf("%v", err)
		}
		if err := m.Cancel("a", "eve"); err != nil {
			t.Error(err)
		}
		if err := <-ended; err == nil || err.Error() != "the drain was given up by eve" {
			t.Errorf("%v", err)
		}
		if got := m.now(); !strings.HasPrefix(got, "a given up upgrade by dora") {
			t.Errorf("%s", got)
		}
		if got := m.taken(); got != `drain as 0: node "", undo true, refuse false, delete false, 30s` {
			t.Errorf("%s", got)
		}
		// The next drain of the node can begin.
		m.answer = nil
		if _, err := m.Drain(t.Context(), Order{Operation: "reboot", By: "fay"}); err != nil {
			t.Error(err)
		}
	})
}

// TestReceive checks that receive always reads a stream to its end. After a line that is too long
// or contains no progress, receive ignores all later lines.
func TestReceive(t *testing.T) {
	for name, test := range map[string]struct {
		stream string
		want   []int
	}{
		"none":           {"", nil},
		"two":            {`{"left":2}` + "\n" + `{"left":1}` + "\n", []int{2, 1}},
		"no progress":    {`{"left":2}` + "\npanic\n" + `{"left":1}` + "\n", []int{2}},
		"a long line":    {`{"left":2}` + "\n" + `{"problem":"` + strings.Repeat("x", maxLine) + `"}` + "\n" + `{"left":1}` + "\n", []int{2}},
		"without an end": {`{"left":2}` + "\n" + `{"left":`, []int{2}},
	} {
		from := strings.NewReader(test.stream)
		var got []int
		receive(from, func(p nodespec.DrainProgress) { got = append(got, p.Left) })
		if !slices.Equal(got, test.want) || from.Len() != 0 {
			t.Errorf("%s: %v, %d bytes are not read", name, got, from.Len())
		}
	}
}

// await waits until the state of the last drain has the progress p.
func (m *machine) await(t *testing.T, p nodespec.DrainProgress) {
	t.Helper()
	for w := m.States().Watch(); ; {
		states := w.Current()
		if len(states) > 0 && states[len(states)-1].Remaining() == p.Remaining() {
			return
		}
		select {
		case <-w.Changed():
		case <-t.Context().Done():
			t.Fatalf("the state does not have the reported progress: %s", m.now())
		}
	}
}

// TestCancelTooLate checks that a caller cannot give up a drain after its command has ended. The
// operation then proceeds.
func TestCancelTooLate(t *testing.T) {
	m := newMachine(config.DrainTimeout)
	var late error
	m.Drainer.deps.Event = func(_, message string) {
		if message == "0 pods evicted" {
			late = m.Cancel("", "eve")
		}
	}
	if _, err := m.Drain(t.Context(), Order{Operation: "reboot", By: "dora"}); err != nil {
		t.Error(err)
	}
	if status.Code(late) != codes.FailedPrecondition || !strings.HasPrefix(m.now(), "a drained") {
		t.Errorf("%v; %s", late, m.now())
	}
}

// TestStates checks the limit of the stored states. The states of running drains are never removed.
func TestStates(t *testing.T) {
	m := newMachine(config.DrainTimeout)
	m.addState(State{Node: "runs", Phase: nodespec.PhaseRunning})
	for i := range 2 * maxStates {
		m.addState(State{Node: fmt.Sprint(i), Phase: nodespec.PhaseDrained})
	}
	states, _ := m.States().Get()
	if len(states) != maxStates || states[0].Node != "runs" || states[maxStates-1].Node != fmt.Sprint(2*maxStates-1) {
		t.Errorf("%d: %v", len(states), states)
	}
}

// TestShutdown checks drains that end because this machine shuts down. The node of this machine
// stays cordoned, because pods must not start on it. The drain of another machine is undone.
func TestShutdown(t *testing.T) {
	for node, want := range map[string]string{"": "drained", "b": "undone"} {
		m := newMachine(config.DrainTimeout)
		stopping, stop := context.WithCancel(t.Context())
		m.Drainer.deps.Stopping = stopping
		order := Order{Operation: "reboot", By: "dora", Node: node, Policy: config.Drain{Policy: config.DrainTimeout}}
		if _, err := m.Drain(t.Context(), order); err != nil {
			t.Fatal(err)
		}
		stop()
		m.taken()
		m.Undo(order)
		if got := m.taken(); strings.Contains(got, "undo true") != (want == "undone") || !strings.Contains(m.now(), want) {
			t.Errorf("%q: %s, %s", node, got, m.now())
		}
	}
}

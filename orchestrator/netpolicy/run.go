package netpolicy

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "netpolicy"

const (
	// pace is the least time between two looks at all there is; what changes meanwhile is one
	// change. In a cluster so large that a look takes long, it is share times as long: a fraction
	// of a processor for this, however much happens.
	pace  = 100 * time.Millisecond
	share = 10
	// slowest is the longest such pause: time passes also when nothing is computed, as while
	// another one changes the kernel's tables.
	slowest = 2 * time.Second
	// heal is how long the table may be amiss in the kernel by somebody's hand.
	heal = time.Minute
	// soon and late are how long after a failure it is tried again: first, doubled each time, and
	// at most.
	soon, late = time.Second, 30 * time.Second
)

// shown bounds how many problems of policies are told.
const shown = 3

// Component describes the engine without its Run function, or what stands in its place where
// something else connects the pods: that has policies of its own, and packets do not come by here.
// It is the node's agent to the API server.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	if spec.External.Network {
		return component.External(Name, "what connects pods enforces network policies")
	}
	config := kubeconfig.NodeFile(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey)
	return component.Component{Process: component.Node, Name: Name, Files: []component.File{config}}
}

// Run keeps the table as the cluster's policies say until ctx is done; the table stays. rights
// waits until the API server can be asked. A node without a table, such as one that was just
// started, has a closed one until then.
func Run(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, rights func(context.Context) error, announce component.Announce) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig.Path(dirs.Node, Name))
	if err != nil {
		return fmt.Errorf("cannot use kubeconfig: %w", err)
	}
	config.ContentType = runtime.ContentTypeProtobuf // half of the work of JSON
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	f, err := follow(ctx, api, spec, rights)
	if err != nil {
		return err
	}
	e := engine{empty: empty(spec), read: kernel{}.read, write: kernel{}.write, announce: announce}
	e.run(ctx, f.changed, f.world)
	return nil
}

// engine brings the kernel in line with the world.
type engine struct {
	empty    Input
	read     func() (fingerprint string, err error)
	write    func(Table) error
	announce component.Announce

	have   string    // the fingerprint of the table in the kernel, as far as is known
	looked time.Time // at the kernel
	told   string
}

// run works until ctx is done: when something changed, every minute, and after a failure again.
func (e *engine) run(ctx context.Context, changed <-chan struct{}, world func() (Input, error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	last, rest, again := time.Time{}, pace, soon
	for {
		select {
		case <-changed:
			if wait := rest - time.Since(last); wait > 0 {
				timer.Reset(wait)
				continue
			}
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		begun := time.Now()
		ready, detail, err := e.step(world())
		last = time.Now()
		rest = min(max(pace, share*last.Sub(begun)), slowest)
		if err != nil {
			ready, detail = false, fmt.Sprintf("%v; the rules are those of before", err)
			timer.Reset(again)
			again = min(2*again, late)
		} else {
			timer.Reset(heal)
			again = soon
		}
		if now := fmt.Sprint(ready, detail); now != e.told && ctx.Err() == nil {
			e.announce(Name, ready, detail)
			e.told = now
		}
	}
}

// step makes the table such as the world wants it, and says how the node is. While the world is not
// known, a table that is there stays.
func (e *engine) step(w Input, unknown error) (ready bool, detail string, err error) {
	if time.Since(e.looked) >= heal {
		if e.have, err = e.read(); err != nil {
			return false, "", err
		}
		e.looked = time.Now()
	}
	if unknown != nil {
		if e.have == "" {
			err = e.put(DenyAll(e.empty))
		}
		return false, unknown.Error(), err
	}
	table, problems := Compile(w)
	if err := e.put(table); err != nil {
		return false, "", err
	}
	return true, describe(len(w.Policies), problems), nil
}

// put writes the table if it is not in the kernel.
func (e *engine) put(t Table) error {
	want := t.Fingerprint()
	if e.have == want {
		return nil
	}
	if err := e.write(t); err != nil {
		e.looked = time.Time{} // who knows what is there
		return err
	}
	e.have = want
	klog.V(1).Infof("%s: table %s written: %d sets, %d chains", Name, want[:8], len(t.Sets), len(t.Chains))
	return nil
}

// describe is the component's detail.
func describe(policies int, problems []error) string {
	text := fmt.Sprintf("%d policies in the cluster", policies)
	for _, p := range problems[:min(len(problems), shown)] {
		text += "; " + p.Error()
	}
	if more := len(problems) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more problems", more)
	}
	return text
}

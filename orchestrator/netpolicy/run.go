package netpolicy

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "netpolicy"

const (
	// minInterval is the shortest time between two passes over all objects. A pass combines all
	// changes since the previous pass. In a large cluster, the time between two passes is
	// passFactor times the duration of a pass, so the passes use only a fraction of a processor.
	minInterval = 100 * time.Millisecond
	passFactor  = 10
	// maxInterval bounds the time between two passes that results from passFactor. The duration of
	// a pass may include waiting, for example while another process changes the kernel's tables.
	maxInterval = 2 * time.Second
	// resyncPeriod is the period at which the engine reads the table in the kernel. A manual change
	// of that table lasts no longer.
	resyncPeriod = time.Minute
	// minBackoff and maxBackoff are the first and the longest delay after a failure. Each delay is
	// twice the previous delay.
	minBackoff, maxBackoff = time.Second, 30 * time.Second
)

// maxShown is the largest number of problems in the status text.
const maxShown = 3

// Component describes the component without its Run function. The component uses the identity of
// the node's agent at the API server. If an external network connects the pods, Component returns a
// placeholder: packets of pods then do not traverse the chains of this package, and the external
// network enforces the policies.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	if spec.External.Network {
		return component.External(Name, "the external network enforces network policies")
	}
	return kubeconfig.NodeComponent(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey)
}

// Run applies the cluster's policies to the table until ctx is done. The table stays in the kernel
// after Run has returned. Before Run has read the objects for the first time, a node without a
// table, for example after a boot, denies all traffic of pods.
func Run(ctx context.Context, env component.Env) error {
	config, err := env.Config(Name)
	if err != nil {
		return err
	}
	// protobuf takes half of the processor time of JSON
	config.ContentType = runtime.ContentTypeProtobuf
	api, err := component.NewClient(config)
	if err != nil {
		return err
	}
	f, err := watch(ctx, api, env)
	if err != nil {
		return err
	}
	e := engine{empty: empty(env.Spec), read: kernel{}.read, write: kernel{}.write, announce: env.Announce}
	e.run(ctx, f.changed, f.input)
	return nil
}

// engine compiles the input and writes the table to the kernel.
type engine struct {
	empty    Input
	read     func() (fingerprint string, err error)
	write    func(Table) error
	announce component.Announce

	have   string    // the fingerprint of the table in the kernel at the last read or write
	readAt time.Time // the time of the last read of the table in the kernel
	// the last announced status
	announced string
}

// run calls step until ctx is done: after a change, every resyncPeriod, and after a failure.
func (e *engine) run(ctx context.Context, changed <-chan struct{}, world func() (Input, error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	last, rest, failures := time.Time{}, minInterval, 0
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
		rest = min(max(minInterval, passFactor*last.Sub(begun)), maxInterval)
		if err != nil {
			ready, detail = false, fmt.Sprintf("%v; the previous rules stay", err)
			failures++
			timer.Reset(backoff.Backoff{Min: minBackoff, Max: maxBackoff}.Delay(failures))
		} else {
			timer.Reset(resyncPeriod)
			failures = 0
		}
		if now := fmt.Sprint(ready, detail); now != e.announced && ctx.Err() == nil {
			e.announce(Name, ready, detail)
			e.announced = now
		}
	}
}

// step applies the input to the table and returns the status of the component. unknown is not nil
// if the input is incomplete: then an existing table stays, and a node without a table gets the
// table of DenyAll.
func (e *engine) step(w Input, unknown error) (ready bool, detail string, err error) {
	if time.Since(e.readAt) >= resyncPeriod {
		if e.have, err = e.read(); err != nil {
			return false, "", err
		}
		e.readAt = time.Now()
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

// put writes the table if its fingerprint differs from that of the table in the kernel.
func (e *engine) put(t Table) error {
	want := t.Fingerprint()
	if e.have == want {
		return nil
	}
	if err := e.write(t); err != nil {
		e.readAt = time.Time{} // forces a read of the kernel's table
		return err
	}
	e.have = want
	klog.V(1).Infof("%s: table %s written: %d sets, %d chains", Name, want[:8], len(t.Sets), len(t.Chains))
	return nil
}

// describe returns the status text of the component: the number of policies and the first problems.
func describe(policies int, problems []error) string {
	text := fmt.Sprintf("%d policies in the cluster", policies)
	for _, p := range problems[:min(len(problems), maxShown)] {
		text += "; " + p.Error()
	}
	if more := len(problems) - maxShown; more > 0 {
		text += fmt.Sprintf("; and %d more problems", more)
	}
	return text
}

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
	// minInterval is the shortest time between two passes over all objects; changes in between are
	// combined. In a large cluster where a pass takes long, the time is passFactor times as long as
	// the pass: so this work takes a bounded fraction of a processor.
	minInterval = 100 * time.Millisecond
	passFactor  = 10
	// maxInterval bounds that time: a pass also includes waiting times, for example while another
	// process changes the kernel's tables.
	maxInterval = 2 * time.Second
	// resyncPeriod bounds how long a manual change of the table in the kernel lasts.
	resyncPeriod = time.Minute
	// minBackoff and maxBackoff are the first and the longest delay after a failure; each delay is
	// twice the previous one.
	minBackoff, maxBackoff = time.Second, 30 * time.Second
)

// maxShown is the maximal number of problems in the status text.
const maxShown = 3

// Component describes the engine without its Run function. If an external component connects the
// pods, it describes a placeholder: the external component has its own policies, and packets do not
// pass this package's chains. The engine has the identity of the node's agent at the API server.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	if spec.External.Network {
		return component.External(Name, "the external network enforces network policies")
	}
	return kubeconfig.NodeComponent(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey)
}

// Run applies the cluster's policies to the table until ctx is done; the table stays. Until the
// objects are known, a node without a table, for example after a boot, denies all traffic of pods.
func Run(ctx context.Context, env component.Env) error {
	config, err := env.Config(Name)
	if err != nil {
		return err
	}
	config.ContentType = runtime.ContentTypeProtobuf // half of the work of JSON
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

// engine applies the input to the kernel.
type engine struct {
	empty    Input
	read     func() (fingerprint string, err error)
	write    func(Table) error
	announce component.Announce

	have      string    // the fingerprint of the table in the kernel, as last known
	readAt    time.Time // the last read of the kernel's table
	announced string
}

// run works until ctx is done: after a change, every minute, and after a failure.
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

// step applies the input to the table and returns the node's status. While the input is unknown, an
// existing table stays.
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

// put writes the table if it differs from the kernel's.
func (e *engine) put(t Table) error {
	want := t.Fingerprint()
	if e.have == want {
		return nil
	}
	if err := e.write(t); err != nil {
		e.readAt = time.Time{} // the kernel's table is unknown now
		return err
	}
	e.have = want
	klog.V(1).Infof("%s: table %s written: %d sets, %d chains", Name, want[:8], len(t.Sets), len(t.Chains))
	return nil
}

// describe returns the component's detail.
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

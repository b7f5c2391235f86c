package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/vm"
)

// blackoutPods is the number of pods that must become Ready again after the power cut.
const blackoutPods = 10

// blackoutFigures are the figures of a cluster after a power cut of all machines. All times begin
// when the machines are switched on again.
type blackoutFigures struct {
	outcome
	Pods int      `json:"pods"`
	API  *float64 `json:"poweron_to_api_s,omitempty"` // until the virtual address answers
	// until all Nodes are Ready in their next boot
	AllReady *float64 `json:"poweron_to_all_ready_s,omitempty"`
	// until all pods are Ready with new containers
	PodsBack *float64 `json:"poweron_to_pods_back_s,omitempty"`
}

func (f *blackoutFigures) rows() []row {
	return []row{
		{"power-on → the virtual address answers", seconds(f.API), ""},
		{"power-on → all Nodes Ready", seconds(f.AllReady), ""},
		{fmt.Sprintf("power-on → all %d pods Ready", f.Pods), seconds(f.PodsBack), ""},
	}
}

// blackout cuts the power of all machines at the same time, and switches them on again.
func (b *bench) blackout(ctx context.Context) (_ figures, err error) {
	f := &blackoutFigures{Pods: blackoutPods}
	if err := b.importImage(ctx); err != nil {
		return f, err
	}
	const app = "blackout"
	if _, err := b.kube.AppsV1().Deployments(namespace).Create(ctx, deployment(app, b.workers(), blackoutPods), meta.CreateOptions{}); err != nil {
		return f, fmt.Errorf("Deployment %s: %w", app, err)
	}
	defer func() {
		gone := b.kube.AppsV1().Deployments(namespace).Delete(context.WithoutCancel(ctx), app, meta.DeleteOptions{})
		err = errors.Join(err, gone)
	}()
	_, before, err := b.allBack(ctx, app, blackoutPods, nil)
	if err != nil {
		return f, err
	}
	starts, err := b.starts(ctx)
	if err != nil {
		return f, err
	}
	say("blackout: all machines lose their power")
	if err := b.all(ctx, vm.ActionPowerCut); err != nil {
		return f, err
	}
	on := b.clock.Now()
	if err := b.all(ctx, vm.ActionPowerOn); err != nil {
		return f, err
	}
	a, err := b.askVirtualAddress(ctx)
	if err != nil {
		return f, err
	}
	defer a.end()
	ready, err := b.awaitRestart(ctx, starts)
	if answers := a.answers(); len(answers) > 0 {
		f.API = since(on, answers[0])
	}
	if err != nil {
		return f, err
	}
	f.AllReady = since(on, ready)
	back, _, err := b.allBack(ctx, app, blackoutPods, before)
	f.PodsBack = since(on, back)
	return f, err
}

// all performs an action on all machines concurrently, and returns the errors of all machines.
func (b *bench) all(ctx context.Context, action vm.Action) error {
	names := b.cluster.Machines()
	failed := make(chan error, len(names))
	var done sync.WaitGroup
	for name := range names {
		done.Go(func() { failed <- b.power.Act(ctx, name, action) })
	}
	done.Wait()
	close(failed)
	var err error
	for e := range failed {
		err = errors.Join(err, e)
	}
	return err
}

// starts returns the ID of the present boot of each machine, by the name of its Node.
func (b *bench) starts(ctx context.Context) (map[string]string, error) {
	list, err := b.kube.CoreV1().Nodes().List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("Nodes: %w", err)
	}
	ids := map[string]string{}
	for i := range list.Items {
		ids[list.Items[i].Name] = list.Items[i].Status.NodeInfo.BootID
	}
	return ids, nil
}

// awaitRestart waits until all Nodes are Ready in a new boot. It compares the boot IDs, because the
// condition Ready of a Node remains True for a while after its machine has become unreachable.
func (b *bench) awaitRestart(ctx context.Context, before map[string]string) (time.Time, error) {
	for {
		list, err := b.kube.CoreV1().Nodes().List(ctx, meta.ListOptions{})
		if err == nil {
			missing := notStarted(list.Items, before)
			if len(missing) == 0 {
				return b.clock.Now(), nil
			}
			err = fmt.Errorf("not Ready in a new boot: %q", missing)
		}
		if backoff.Sleep(ctx, pause) != nil {
			return time.Time{}, fmt.Errorf("Nodes: %w", err)
		}
	}
}

// notStarted returns the names of the nodes that are not Ready, or still in the boot whose ID is in
// before.
func notStarted(nodes []core.Node, before map[string]string) []string {
	var missing []string
	for i := range nodes {
		n := &nodes[i]
		if _, ready := readySince(n); !ready || n.Status.NodeInfo.BootID == before[n.Name] {
			missing = append(missing, n.Name)
		}
	}
	return missing
}

package machines

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/machines/hosts"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// inventoryLoop is the state of the second loop of the controllers: it maintains waiting machines,
// power on demand, claims and overviews. It has its own clients. A fence, in the first loop, must
// not wait for the reads and writes of the second loop, for example for the read of the pods of all
// machines.
type inventoryLoop struct {
	moved      cell.Signal // a watched object has changed
	paused     time.Time   // end of the last pass
	later      *clients    // performs the changes
	reads      kubernetes.Interface
	hostsFile  string // file of machined with the waiting machines and the members
	claimsFile string // file for machined with the claims
	overviews  *overviews
	demand     demand
}

// details joins the details of the two loops.
type details struct {
	report func(string)

	mu            sync.Mutex
	first, second string
}

// set changes the detail of a loop, and reports both if they differ.
func (d *details) set(of *string, detail string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if *of == detail {
		return
	}
	*of = detail
	d.report(strings.Join(slices.DeleteFunc([]string{d.first, d.second}, func(s string) bool { return s == "" }), "; "))
}

// runInventory runs the second loop until ctx is done. The first loop starts the informers.
func (c *controller) runInventory(ctx context.Context, watched []component.Watched, both *details) error {
	return component.Reconciler{
		Changed: c.moved, Period: period, RetryInterval: retryInterval, Watched: watched, Report: func(string) {},
		Pass: func(ctx context.Context) (string, error) {
			err := c.passInventory(ctx)
			text := ""
			if err != nil {
				text = err.Error()
			}
			both.set(&both.second, text)
			return "", err
		},
	}.Run(ctx)
}

// passInventory performs the changes of waiting machines, power on demand, claims and overviews.
func (c *controller) passInventory(ctx context.Context) error {
	if err := backoff.Sleep(ctx, minInterval-time.Since(c.paused)); err != nil {
		return nil // ctx is done
	}
	defer func() { c.paused = time.Now() }()
	listing, err := hosts.Read(c.hostsFile)
	if err != nil {
		return err
	}
	s := c.cached()
	return cmp.Or(c.passHosts(ctx, s, listing), c.passDemand(ctx, s), c.passClaims(ctx, s, listing), c.overviews.pass(ctx, c.now()))
}

// passHosts performs the changes for waiting machines, and operates the power switches of hosts.
func (c *controller) passHosts(ctx context.Context, s Snapshot, listing inventory.Listing) error {
	in := hosts.Snapshot{Now: c.now(), Listing: listing, Objects: component.Objects[*machineapi.OrlopHost](c.hosts), Nodes: s.Nodes, Own: s.Own}
	if c.rules != nil {
		in.Rules = component.Objects[*machineapi.OrlopApprovalRule](c.rules)
	}
	var unread error
	if in.Operate = c.sets != nil; in.Operate {
		unread = c.readSwitches(ctx, &in)
	}
	result := hosts.Plan(in)
	c.switches.WantHosts(wantedOfHosts(result.Calls))
	failed := perform(result.Changes, func(change hosts.Change) error { return c.later.doHost(ctx, change) })
	for _, call := range result.Calls {
		if err := c.callHost(ctx, call); err != nil {
			return cmp.Or(failed, err)
		}
	}
	return cmp.Or(failed, unread)
}

// readSwitches reads the Secrets of the power switches if a decision about a host depends on them.
func (c *controller) readSwitches(ctx context.Context, in *hosts.Snapshot) error {
	in.Power = map[string]fence.Switch{}
	needed := hosts.NeedPower(*in)
	if len(needed) > 0 {
		secrets, err := c.switches.Secrets(ctx)
		if err != nil {
			return err
		}
		in.Boards = secrets.Boards()
		for _, h := range needed {
			in.Power[h.Name] = c.switches.Host(secrets, h)
		}
	}
	c.switches.RetainHosts(in.Power)
	return nil
}

// wantedOfHosts returns the requests by the names of their hosts.
func wantedOfHosts(calls []hosts.Call) map[string]fence.Action {
	actions := map[string]fence.Action{}
	for _, call := range calls {
		actions[call.Host.Name] = call.Action
	}
	return actions
}

// callHost operates the power switch of a host. Before it switches a machine on or off, it reads
// the object and the Nodes from the API server: the caches can be stale, and a claim can have
// begun, or the machine can be a member of the cluster now.
func (c *controller) callHost(ctx context.Context, call hosts.Call) error {
	if call.Action != fence.Read {
		now, err := c.later.hosts.Get(ctx, call.Host.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", describe(call.Host), err)
		}
		nodes, err := c.reads.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("cannot read the Nodes: %w", err)
		}
		isMember := slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return hosts.StatesUUID(&n, call.Host) })
		if isMember || now.UID != call.Host.UID || !equality.Semantic.DeepEqual(now.Spec, call.Host.Spec) {
			return nil // the next pass decides on the new objects
		}
	}
	c.switches.CallHost(call.Host.Name, call.Host.Status.Inventory.UUID, call.Action)
	return nil
}

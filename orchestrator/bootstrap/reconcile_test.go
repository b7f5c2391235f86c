package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestDeletedIsRestored deletes the Services, rights and objects for volumes that this package
// creates. It checks that a single pass restores all of them.
func TestDeletedIsRestored(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := fake.NewClientset()
	spec := nodespec.Spec{Network: nodespec.Network{DNSIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}}
	all := slices.Concat(managedServices(spec, client), managedRights(client), managedVolumes(client))
	if len(all) < 20 {
		t.Fatalf("the package manages only %d objects", len(all))
	}
	for _, k := range all {
		if err := k.ensure(ctx); err != nil {
			t.Fatalf("%s: %v", k.text(), err)
		}
		tracker := client.Tracker()
		if err := tracker.Delete(k.resource, k.namespace, k.name); err != nil {
			t.Fatalf("%s: was not created: %v", k.text(), err)
		}
	}
	changed, looked := make(chan struct{}, 1), make(chan struct{})
	changed <- struct{}{}
	last := managed{name: "last", ensure: func(context.Context) error { close(looked); return nil }}
	go resyncLoop(ctx, append(slices.Clone(all), last), changed, time.Hour, time.Millisecond, func(what, why string) { t.Errorf("%s: %s", what, why) })
	select {
	case <-looked:
	case <-ctx.Done():
		t.Fatal("resyncLoop makes no pass")
	}
	for _, k := range all {
		if _, err := client.Tracker().Get(k.resource, k.namespace, k.name); err != nil {
			t.Errorf("%s: %v", k.text(), err)
		}
	}
}

// TestResyncLoop checks that a change and the period cause passes, that a rejection is reported,
// retried soon and cleared when it is over, and that a conflict that only the operator can resolve
// waits for the next period.
func TestResyncLoop(t *testing.T) {
	for _, c := range []struct {
		name    string
		refusal error
		soon    time.Duration // the shortest permitted delay of the retry
	}{
		{"a rejection", errors.New("no"), time.Millisecond},
		{"a conflict", conflictError("no"), 50 * time.Millisecond},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var told []string
		var at []time.Time
		looks := 0
		k := managed{resource: apiServicesResource, name: "x", ensure: func(context.Context) error {
			at = append(at, time.Now())
			if looks++; looks == 1 {
				return c.refusal
			}
			return nil
		}}
		resyncLoop(ctx, []managed{k}, nil, 50*time.Millisecond, time.Millisecond, func(what, why string) {
			if told = append(told, fmt.Sprintf("%s: %s", what, why)); why == "" {
				cancel()
			}
		})
		cancel()
		if want := []string{"x: apiservices x: cannot restore: no", "x: "}; !slices.Equal(told, want) || len(at) != 2 {
			t.Errorf("%s: reported %q in %d passes", c.name, told, len(at))
		} else if took := at[1].Sub(at[0]); took < c.soon {
			t.Errorf("%s: tried again after %s", c.name, took)
		}
	}
}

// TestWatchChanges checks that watchChanges requests a pass when one of our objects is changed or
// deleted, and when the watch ends. An existing object, or an object of others, requests no pass.
func TestWatchChanges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	object := func(name string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	looks, opened := 0, 0
	open := func(context.Context) (watch.Interface, error) {
		if opened++; opened > 1 {
			cancel()
			return nil, errors.New("away")
		}
		w := watch.NewFakeWithChanSize(8, false)
		w.Add(object("ours"))
		w.Modify(object("theirs"))
		w.Delete(object("ours"))
		w.Modify(object("ours"))
		w.Error(&metav1.Status{Message: "too old"})
		w.Stop()
		return w, nil
	}
	watchChanges(ctx, open, func(o metav1.Object) bool { return o.GetName() == "ours" }, time.Millisecond, func() { looks++ })
	if looks != 3 || opened != 2 {
		t.Errorf("%d requests for a pass and %d watches, want 3 and 2", looks, opened)
	}
}

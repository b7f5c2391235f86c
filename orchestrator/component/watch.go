package component

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/pkg/cell"
)

// Wait waits until a channel is closed, or returns ctx's error.
func Wait(ctx context.Context, closed <-chan struct{}) error {
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Watched is an informer of a component, with the conditions under which a change matters.
type Watched struct {
	Informer cache.SharedIndexInformer
	// Name is the name of the only object that matters; empty: all objects matter.
	Name string
	// Same reports whether an update does not matter. Without it, every update matters.
	Same func(before, now any) bool
	// IgnoreDeletes means that deletions do not matter.
	IgnoreDeletes bool
}

// Watch calls change after every change that matters, as long as the informers run.
func Watch(change func(), all ...Watched) error {
	_, err := watch(change, all)
	return err
}

// watch calls change after every change that matters, until the returned function is called.
func watch(change func(), all []Watched) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for _, w := range all {
		registered, err := w.Informer.AddEventHandler(w.handler(change))
		if w.Informer.IsStopped() {
			continue // the process ends, and so does the component
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("cannot watch: %w", err)
		}
		stops = append(stops, func() {
			// RemoveEventHandler fails only for a handler of another informer.
			utilruntime.HandleError(w.Informer.RemoveEventHandler(registered))
		})
	}
	return stop, nil
}

// handler returns the event handler that calls change after every change that matters.
func (w Watched) handler(change func()) cache.ResourceEventHandler {
	changed := func(object any) {
		if w.Name == "" || nameOf(object) == w.Name {
			change()
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(before, now any) {
		if w.Same == nil || !w.Same(before, now) {
			changed(now)
		}
	}}
	if !w.IgnoreDeletes {
		handler.DeleteFunc = changed
	}
	return handler
}

// nameOf returns the name of an object, or of a deleted object whose last state is unknown.
func nameOf(object any) string {
	key, err := cache.DeletionHandlingObjectToName(object)
	if err != nil {
		return ""
	}
	return key.Name
}

// Objects returns the objects of an informer.
func Objects[T any](informer cache.SharedIndexInformer) []T {
	var all []T
	for _, o := range informer.GetStore().List() {
		if object, ok := o.(T); ok {
			all = append(all, object)
		}
	}
	return all
}

// Only is an option for informers: it selects the objects in which the named field has the given
// value.
func Only(field, value string) informers.SharedInformerOption {
	return informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(field, value).String()
	})
}

// Factory makes informers.
type Factory interface {
	Start(stop <-chan struct{})
	Shutdown()
}

// Informers is a Factory of existing informers.
type Informers struct {
	All     []cache.SharedIndexInformer
	running sync.WaitGroup
}

// Start implements Factory.
func (f *Informers) Start(stop <-chan struct{}) {
	for _, i := range f.All {
		f.running.Go(func() { i.Run(stop) })
	}
}

// Shutdown implements Factory. It waits for the end of all informers.
func (f *Informers) Shutdown() { f.running.Wait() }

// Reconciler makes a pass after every change of the watched objects (ResyncLoop).
type Reconciler struct {
	Changed   cell.Signal
	Factories []Factory // of the watched informers; Run starts them
	Watched   []Watched
	// Unsynced means that the first pass does not wait for the first lists.
	Unsynced bool
	// Period is the interval of passes without a change; 0 means that there are none.
	Period time.Duration
	// RetryInterval is the delay after a failed pass.
	RetryInterval time.Duration
	// Pass and Report are the functions of ResyncLoop.
	Pass   func(context.Context) (string, error)
	Report func(detail string)
}

// Run works until ctx is done.
func (r Reconciler) Run(ctx context.Context) error {
	unwatch, err := watch(r.Changed.Wake, r.Watched)
	if err != nil {
		return err
	}
	// informers that other components share keep running, so the handlers must be removed
	defer unwatch()
	for _, f := range r.Factories {
		f.Start(ctx.Done())
		defer f.Shutdown()
	}
	if !r.Unsynced {
		var synced []cache.InformerSynced
		for _, w := range r.Watched {
			synced = append(synced, w.Informer.HasSynced)
		}
		if !cache.WaitForCacheSync(ctx.Done(), synced...) {
			return nil // stopped
		}
	}
	if r.Period > 0 {
		go wakeEvery(ctx, r.Period, r.Changed)
	}
	ResyncLoop(ctx, r.Changed, r.RetryInterval, r.Pass, r.Report)
	return nil
}

func wakeEvery(ctx context.Context, period time.Duration, changed cell.Signal) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			changed.Wake()
		case <-ctx.Done():
			return
		}
	}
}

// Trimmed returns the metadata that every watch needs, and the named annotations. It omits the
// other fields, so that the objects of a large cluster take little memory. The resource version
// distinguishes a changed object from a repetition of the same object.
func Trimmed(o metav1.Object, annotations ...string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
	for _, name := range annotations {
		if value, there := o.GetAnnotations()[name]; there {
			metav1.SetMetaDataAnnotation(&meta, name, value)
		}
	}
	return meta
}

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// The objects are also restored while the machine runs: a user may delete an object together with a
// chart that contains the same component. Watches notice a change at once; a periodic resync finds
// missed changes.
const (
	// resyncPeriod is the time between two passes without a change. It is long, because a pass
	// reads some thirty objects.
	resyncPeriod = 10 * time.Minute
	// firstResync is the time from the start to the first pass. The pass is early, because the
	// watches miss a deletion before their start.
	firstResync = 10 * time.Second
	// conflictPeriod is the time between two passes while another owner's Service has the name or
	// the address of a Service of this package. The end of a conflict is not always visible to a
	// watch.
	conflictPeriod = time.Minute
	// minBackoff is the time from a change to the pass. So several changes in this time cause a
	// single pass. It is also the first delay after a rejection.
	minBackoff = 500 * time.Millisecond
	// reopenAfter is the delay after a watch that failed or ended.
	reopenAfter = 5 * time.Second
)

// managed is an object that is restored.
type managed struct {
	resource        schema.GroupVersionResource
	namespace, name string
	ensure          func(context.Context) error
}

// text names the object for users: "apiservices v1beta1.metrics.k8s.io".
func (k managed) text() string {
	if k.namespace == "" {
		return k.resource.Resource + " " + k.name
	}
	return k.resource.Resource + " " + k.namespace + "/" + k.name
}

var (
	servicesResource    = corev1.SchemeGroupVersion.WithResource("services")
	apiServicesResource = apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")
	classesResource     = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}
	driversResource     = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}
	definitionsResource = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	snapshotsResource   = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotclasses"}
)

// managedRights are the roles and bindings of this package that every cluster has.
func managedRights(client kubernetes.Interface) []managed { return managedRBAC(client, rights()) }

// managedRBAC returns roles and bindings as managed objects.
func managedRBAC(client kubernetes.Interface, objects []runtime.Object) []managed {
	var all []managed
	for _, object := range objects {
		m, err := meta.Accessor(object)
		if err != nil {
			panic(err) // never for the types that rights returns
		}
		resource := map[bool]string{true: "clusterroles", false: "clusterrolebindings"}
		_, role := object.(*rbacv1.ClusterRole)
		if m.GetNamespace() != "" {
			resource = map[bool]string{true: "roles", false: "rolebindings"}
			_, role = object.(*rbacv1.Role)
		}
		all = append(all, managed{rbacv1.SchemeGroupVersion.WithResource(resource[role]), m.GetNamespace(), m.GetName(),
			func(context.Context) error { return Ensure(client, object) }})
	}
	return all
}

// resyncLoop restores the objects until ctx is done. A value from changed requests a pass. report
// gets the reason for each object that cannot be restored, and "" when the object could be restored
// again.
func resyncLoop(ctx context.Context, all []managed, changed <-chan struct{}, period, minBackoff time.Duration, report func(what, why string)) {
	timer := time.NewTimer(min(period, firstResync))
	defer timer.Stop()
	failed := map[string]bool{}
	for failures := 1; ; {
		select {
		case <-changed:
			if backoff.Sleep(ctx, minBackoff) != nil {
				return
			}
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		next := period
		for _, k := range all {
			err := k.ensure(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				report(k.name, fmt.Sprintf("%s: cannot restore: %v", k.text(), err))
				failed[k.text()] = true
				retry := min(period, conflictPeriod)
				if !errors.As(err, new(conflictError)) { // the operator has to act
					retry = backoff.Backoff{Min: minBackoff, Max: retry}.Delay(failures)
				}
				next = min(next, retry)
			case failed[k.text()]:
				report(k.name, "")
				delete(failed, k.text())
			}
		}
		if failures++; next >= min(period, conflictPeriod) {
			failures = 1
		}
		timer.Reset(next)
	}
}

// watchManaged calls wake whenever an object was changed or deleted. It stores no objects in
// memory.
func watchManaged(ctx context.Context, client metadata.Interface, all []managed, wake func()) {
	type place struct {
		resource  schema.GroupVersionResource
		namespace string
	}
	names := map[place]map[string]bool{}
	for _, k := range all {
		p := place{k.resource, k.namespace}
		if names[p] == nil {
			names[p] = map[string]bool{}
		}
		names[p][k.name] = true
	}
	for p, wanted := range names {
		open := func(ctx context.Context) (watch.Interface, error) {
			return client.Resource(p.resource).Namespace(p.namespace).Watch(ctx, metav1.ListOptions{})
		}
		go watchChanges(ctx, open, func(o metav1.Object) bool { return wanted[o.GetName()] }, reopenAfter, wake)
	}
}

// watchChanges calls wake whenever an object for which selected is true was changed or deleted. It
// also calls wake after each end of the watch, because a change may have been missed. It returns
// when ctx is done.
func watchChanges(ctx context.Context, open func(context.Context) (watch.Interface, error), selected func(metav1.Object) bool, reopenAfter time.Duration, wake func()) {
	for {
		if w, err := open(ctx); err == nil {
			receive(ctx, w, selected, wake)
			w.Stop()
		}
		if backoff.Sleep(ctx, reopenAfter) != nil {
			return
		}
		wake()
	}
}

// receive calls wake for the events of a watch (watchChanges), until the watch ends or ctx is done.
func receive(ctx context.Context, w watch.Interface, selected func(metav1.Object) bool, wake func()) {
	for {
		select {
		case e, more := <-w.ResultChan():
			if !more {
				return
			}
			if o := objectOf(e.Object); o != nil && (e.Type == watch.Deleted || e.Type == watch.Modified) && selected(o) {
				wake()
			}
		case <-ctx.Done():
			return
		}
	}
}

func objectOf(o runtime.Object) metav1.Object {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil // the event is an error, and the watch ends
	}
	return m
}

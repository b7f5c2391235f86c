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
)

// What is made at the start is put back while the machine runs, too: a user may delete it together
// with a chart that brings the same part. A change is noticed at once, by watching; looking again
// from time to time finds what was missed.
const (
	// keepEvery is between two looks without a change.
	keepEvery = time.Minute
	// keepFirst is how long after the start it is looked first: what is deleted before the watches
	// are there is missed.
	keepFirst = 10 * time.Second
	// keepSoon is between a change and the look, so that many changes make one look; it is also the
	// first pause after a refusal.
	keepSoon = 500 * time.Millisecond
	// reopenAfter is the pause after a watch that could not be opened, or was ended.
	reopenAfter = 5 * time.Second
)

// kept is one object that is put back.
type kept struct {
	resource        schema.GroupVersionResource
	namespace, name string
	ensure          func(context.Context) error
}

// text names it for people: "APIService v1beta1.metrics.k8s.io".
func (k kept) text() string {
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

// keptRights are the roles and bindings of our own.
func keptRights(client kubernetes.Interface) []kept {
	var all []kept
	for _, object := range rights() {
		m, err := meta.Accessor(object)
		if err != nil {
			panic(err) // they are upstream's types
		}
		resource := map[bool]string{true: "clusterroles", false: "clusterrolebindings"}
		_, role := object.(*rbacv1.ClusterRole)
		if m.GetNamespace() != "" {
			resource = map[bool]string{true: "roles", false: "rolebindings"}
			_, role = object.(*rbacv1.Role)
		}
		all = append(all, kept{rbacv1.SchemeGroupVersion.WithResource(resource[role]), m.GetNamespace(), m.GetName(),
			func(context.Context) error { return Ensure(client, object) }})
	}
	return all
}

// keep puts the objects back until ctx is done. changed asks for a look. tell hears of each object
// why it cannot be put back, and "" when it can again.
func keep(ctx context.Context, all []kept, changed <-chan struct{}, every, soon time.Duration, tell func(what, why string)) {
	timer := time.NewTimer(min(every, keepFirst))
	defer timer.Stop()
	failed := map[string]bool{}
	for pause := soon; ; {
		select {
		case <-changed:
			if !slept(ctx, soon) {
				return
			}
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		next := every
		for _, k := range all {
			err := k.ensure(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				tell(k.name, fmt.Sprintf("%s: cannot be put back: %v", k.text(), err))
				failed[k.text()] = true
				if !errors.As(err, new(inTheWay)) { // which lasts until a person does something
					next = pause
				}
			case failed[k.text()]:
				tell(k.name, "")
				delete(failed, k.text())
			}
		}
		if pause = min(2*pause, every); next == every {
			pause = soon
		}
		timer.Reset(next)
	}
}

func slept(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watchKept asks for a look whenever one of the objects was changed or deleted. Nothing of them is
// kept in memory.
func watchKept(ctx context.Context, client metadata.Interface, all []kept, look func()) {
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
		go Changes(ctx, open, func(o metav1.Object) bool { return wanted[o.GetName()] }, reopenAfter, look)
	}
}

// Changes calls look whenever an object for which counts is true was changed or deleted, and after
// each end of the watch, because some of that may have been missed. It returns when ctx is done.
func Changes(ctx context.Context, open func(context.Context) (watch.Interface, error), counts func(metav1.Object) bool, again time.Duration, look func()) {
	for {
		if w, err := open(ctx); err == nil {
			follow(ctx, w, counts, look)
			w.Stop()
		}
		if !slept(ctx, again) {
			return
		}
		look()
	}
}

// follow returns when the watch ends, or ctx is done.
func follow(ctx context.Context, w watch.Interface, counts func(metav1.Object) bool, look func()) {
	for {
		select {
		case e, more := <-w.ResultChan():
			if !more {
				return
			}
			if o := objectOf(e.Object); o != nil && (e.Type == watch.Deleted || e.Type == watch.Modified) && counts(o) {
				look()
			}
		case <-ctx.Done():
			return
		}
	}
}

func objectOf(o runtime.Object) metav1.Object {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil // an error of the watch, which ends it
	}
	return m
}

package addons

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// patience is how long one request may take.
const patience = 15 * time.Second

// live is the API server as one identity.
type live struct {
	client  dynamic.Interface
	manager string // the field manager
	kinds   *kinds
}

// actAs is the API server as a service account of Namespace.
func actAs(config *rest.Config, account, manager string, kinds *kinds) (live, error) {
	c := rest.CopyConfig(config)
	c.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + Namespace + ":" + account}
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return live{}, fmt.Errorf("cannot make client: %w", err)
	}
	return live{client, manager, kinds}, nil
}

func (l live) at(i Item) dynamic.ResourceInterface {
	if i.Namespace == "" {
		return l.client.Resource(i.gvr())
	}
	return l.client.Resource(i.gvr()).Namespace(i.Namespace)
}

func (l live) get(ctx context.Context, i Item) (o *unstructured.Unstructured, err error) {
	err = l.wherever(i, func(at dynamic.ResourceInterface) (err error) {
		o, err = at.Get(ctx, i.Name, metav1.GetOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

// wherever asks for an item in its version, and where that is not served any more, in one that is:
// the object may be there all the same. A kind that is served in none is not there, and neither are
// its objects.
func (l live) wherever(i Item, ask func(dynamic.ResourceInterface) error) error {
	err := ask(l.at(i))
	if !apierrors.IsNotFound(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return err
	}
	version, known, failed := l.kinds.served(i.gvk().GroupKind(), i.Version)
	switch {
	case failed != nil:
		return fmt.Errorf("%s is not served, and which version is cannot be read: %w", i.Version, failed)
	case !known:
		return err
	}
	i.Version = version
	return ask(l.at(i))
}

// apply takes fields over that others have set: what stands in the manifests counts (kubernetes.io,
// "Server-Side Apply", for controllers).
func (l live) apply(ctx context.Context, i Item, body *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return l.at(i).Apply(ctx, i.Name, body, metav1.ApplyOptions{FieldManager: l.manager, Force: true})
}

func (l live) delete(ctx context.Context, i Item, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := l.wherever(i, func(at dynamic.ResourceInterface) error {
		return at.Delete(ctx, i.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (l live) used(ctx context.Context, definition *unstructured.Unstructured) (bool, error) {
	plural, group := definitionOf(definition.GetName())
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return true, fmt.Errorf("its versions cannot be read: %w", err)
	}
	for _, v := range versions {
		fields, ok := v.(map[string]any)
		if served, _ := fields["served"].(bool); !ok || !served {
			continue
		}
		name, _ := fields["name"].(string)
		found, err := l.client.Resource(schema.GroupVersionResource{Group: group, Version: name, Resource: plural}).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) {
			continue // it never came to be served
		}
		return err != nil || len(found.Items) > 0, err
	}
	return false, nil
}

// kinds is what the API server knows, asked anew when something is unknown, and then not before a
// while.
type kinds struct {
	mapper *restmapper.DeferredDiscoveryRESTMapper
	asked  time.Time
	failed error // the last failure to ask
}

// askAgain is how long an unknown kind is not asked for again.
const askAgain = 5 * time.Second

func newKinds(client kubernetes.Interface) *kinds {
	return &kinds{mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))}
}

// refresh lets what is unknown be asked for again, and says whether that was due.
func (k *kinds) refresh(now time.Time) bool {
	if now.Sub(k.asked) < askAgain {
		return false
	}
	k.asked = now
	k.mapper.Reset()
	return true
}

// of is what is known of a kind. That the API server does not answer is remembered: then nothing is
// known, and that says nothing.
func (k *kinds) of(gvk schema.GroupVersionKind) (Kind, bool) {
	m, err := k.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		if !meta.IsNoMatchError(err) {
			k.failed = err
		}
		return Kind{}, false
	}
	return Kind{Resource: m.Resource.Resource, Namespaced: m.Scope.Name() == meta.RESTScopeNameNamespace}, true
}

// served is the version of a kind that the API server serves, when it does not serve but; false: it
// knows the kind in no version.
func (k *kinds) served(kind schema.GroupKind, but string) (string, bool, error) {
	m, err := k.mapper.RESTMapping(kind)
	if err == nil && m.GroupVersionKind.Version == but {
		k.mapper.Reset() // it was asked before that changed
		m, err = k.mapper.RESTMapping(kind)
	}
	switch {
	case meta.IsNoMatchError(err):
		return "", false, nil
	case err != nil:
		return "", false, err
	case m.GroupVersionKind.Version == but:
		return "", false, fmt.Errorf("%s is listed, and not served yet", but)
	}
	return m.GroupVersionKind.Version, true, nil
}

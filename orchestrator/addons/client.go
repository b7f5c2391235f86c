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

// requestTimeout bounds one request.
const requestTimeout = 15 * time.Second

// apiClient is a client of the API server with one identity.
type apiClient struct {
	client  dynamic.Interface
	manager string // the field manager
	kinds   *kinds
}

// impersonate returns a client that acts as a service account of Namespace.
func impersonate(config *rest.Config, account, manager string, kinds *kinds) (apiClient, error) {
	c := rest.CopyConfig(config)
	c.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + Namespace + ":" + account}
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return apiClient{}, fmt.Errorf("cannot create client: %w", err)
	}
	return apiClient{client, manager, kinds}, nil
}

func (l apiClient) at(i Item) dynamic.ResourceInterface {
	if i.Namespace == "" {
		return l.client.Resource(i.gvr())
	}
	return l.client.Resource(i.gvr()).Namespace(i.Namespace)
}

func (l apiClient) get(ctx context.Context, i Item) (o *unstructured.Unstructured, err error) {
	err = l.inServedVersion(i, func(at dynamic.ResourceInterface) (err error) {
		o, err = at.Get(ctx, i.Name, metav1.GetOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

// inServedVersion calls request with an item in its version. If the API server does not serve that
// version, the object may exist in another version, so inServedVersion calls request again in a
// served version. If the API server serves no version of the kind, objects of the kind do not
// exist.
func (l apiClient) inServedVersion(i Item, request func(dynamic.ResourceInterface) error) error {
	err := request(l.at(i))
	if !apierrors.IsNotFound(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return err
	}
	version, known, failed := l.kinds.servedVersion(i.gvk().GroupKind(), i.Version)
	switch {
	case failed != nil:
		return fmt.Errorf("%s is not served, and the served version is not known: %w", i.Version, failed)
	case !known:
		return err
	}
	i.Version = version
	return request(l.at(i))
}

// apply takes over fields that other managers have set: the manifests have priority (kubernetes.io,
// "Server-Side Apply", for controllers).
func (l apiClient) apply(ctx context.Context, i Item, body *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return l.at(i).Apply(ctx, i.Name, body, metav1.ApplyOptions{FieldManager: l.manager, Force: true})
}

// autoscalerExists implements the type autoscalerExists. It finds only HorizontalPodAutoscalers,
// because autoscalers of other kinds have no common form.
func (m *manager) autoscalerExists(ctx context.Context, i Item) (bool, error) {
	if i.Namespace == "" {
		return false, nil
	}
	list, err := m.client.AutoscalingV2().HorizontalPodAutoscalers(i.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("HorizontalPodAutoscalers of namespace %s: cannot list: %w", i.Namespace, err)
	}
	for _, h := range list.Items {
		target := h.Spec.ScaleTargetRef
		version, err := schema.ParseGroupVersion(target.APIVersion)
		if err == nil && version.Group == i.Group && target.Kind == i.Kind && target.Name == i.Name {
			return true, nil
		}
	}
	return false, nil
}

func (l apiClient) delete(ctx context.Context, i Item, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := l.inServedVersion(i, func(at dynamic.ResourceInterface) error {
		return at.Delete(ctx, i.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (l apiClient) hasResources(ctx context.Context, definition *unstructured.Unstructured) (bool, error) {
	plural, group := definitionOf(definition.GetName())
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		return true, fmt.Errorf("cannot read its versions: %w", err)
	}
	for _, v := range versions {
		fields, ok := v.(map[string]any)
		if served, _ := fields["served"].(bool); !ok || !served {
			continue
		}
		name, _ := fields["name"].(string)
		found, err := l.client.Resource(schema.GroupVersionResource{Group: group, Version: name, Resource: plural}).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) {
			continue // this version was never served
		}
		return err != nil || len(found.Items) > 0, err
	}
	return false, nil
}

// kinds looks up the kinds that the API server knows, in a cache. While a kind of an object is
// unknown, refresh discards the cache, at most once in refreshInterval.
type kinds struct {
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	refreshed time.Time
	failed    error // the last failure to read the kinds
}

// refreshInterval is the shortest time between two refreshes for an unknown kind.
const refreshInterval = 5 * time.Second

func newKinds(client kubernetes.Interface) *kinds {
	return &kinds{mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))}
}

// refresh discards the cached kinds if the last refresh is refreshInterval ago, and reports whether
// it has discarded them.
func (k *kinds) refresh(now time.Time) bool {
	if now.Sub(k.refreshed) < refreshInterval {
		return false
	}
	k.refreshed = now
	k.mapper.Reset()
	return true
}

// lookup returns the details of a kind. If the API server does not answer, the kind only seems to
// be unknown, so lookup records the error in failed.
func (k *kinds) lookup(gvk schema.GroupVersionKind) (Kind, bool) {
	m, err := k.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		if !meta.IsNoMatchError(err) {
			k.failed = err
		}
		return Kind{}, false
	}
	return Kind{Resource: m.Resource.Resource, Namespaced: m.Scope.Name() == meta.RESTScopeNameNamespace}, true
}

// servedVersion returns a version of a kind that the API server serves, other than the version
// unserved; false if the API server serves no version of the kind.
func (k *kinds) servedVersion(kind schema.GroupKind, unserved string) (string, bool, error) {
	m, err := k.mapper.RESTMapping(kind)
	if err == nil && m.GroupVersionKind.Version == unserved {
		k.mapper.Reset() // the cached answer is older than the change
		m, err = k.mapper.RESTMapping(kind)
	}
	switch {
	case meta.IsNoMatchError(err):
		return "", false, nil
	case err != nil:
		return "", false, err
	case m.GroupVersionKind.Version == unserved:
		return "", false, fmt.Errorf("%s is listed, and not served yet", unserved)
	}
	return m.GroupVersionKind.Version, true, nil
}

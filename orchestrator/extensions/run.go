package extensions

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registrations "k8s.io/kube-aggregator/pkg/client/informers/externalversions"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component.
const Name = nodespec.Extensions

const (
	// interval is the time between two passes. It is short, because most checks only read memory.
	interval = 10 * time.Second
	// gracePeriod is the time for which an obstacle must persist before it is reported.
	gracePeriod = 15 * time.Second
	// terminatingLimit is the time after which the reason is checked for which a namespace is not
	// deleted yet.
	terminatingLimit = time.Minute
	// probeInterval is the time between two series of requests as the system. probeTimeout bounds
	// each request. seriesTimeout bounds the series, because other obstacles are found only after
	// the series.
	probeInterval = time.Minute
	probeTimeout  = 35 * time.Second // a webhook may take 30 s
	seriesTimeout = 2 * probeTimeout
)

// Server is the API server of the process.
type Server interface {
	// Loopback returns the privileged connection of the server to itself.
	Loopback(context.Context) (*rest.Config, error)
	// Informers returns the informers of the server itself.
	Informers(context.Context) (informers.SharedInformerFactory, registrations.SharedInformerFactory, error)
}

// Run checks the extensions until ctx is done.
func Run(ctx context.Context, env component.Env, server Server, refusals *RejectionLog) error {
	env.Announce(Name, false, "waiting for the API server")
	config, err := server.Loopback(ctx)
	if err != nil {
		return nil // stopped before the start
	}
	kube, apis, err := server.Informers(ctx)
	if err != nil {
		return nil
	}
	if err := env.Rights(ctx); err != nil {
		return nil
	}
	w, err := newWatcher(config, env.Spec.Node.Name, refusals)
	if err != nil {
		return err
	}
	w.kube, w.apis, w.sealed = kube, apis, len(env.Spec.Kubernetes.SealedPolicies.Manifests) > 0
	env.Announce(Name, true, "")
	w.start(ctx)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for reported := ""; ; {
		detail := text(lasting(w.check(ctx), w.first, time.Now(), gracePeriod))
		if detail != reported && ctx.Err() == nil {
			reported = detail
			if detail != "" {
				detail = nodespec.ProblemPrefix + detail
			}
			env.Announce(Name, true, detail)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// watcher watches the cluster's extensions.
type watcher struct {
	kube        informers.SharedInformerFactory // of the server
	definitions definitions.SharedInformerFactory
	apis        registrations.SharedInformerFactory // of the server
	reacher     reacher
	refusals    *RejectionLog
	first       map[string]time.Time // time of the first sighting of each obstacle
	probes      *prober
	sealed      bool // the site has sealed policies
}

func newWatcher(config *rest.Config, node string, refusals *RejectionLog) (*watcher, error) {
	asJSON := rest.CopyConfig(config)
	asJSON.ContentType, asJSON.AcceptContentTypes = "application/json", ""
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot create client: %w", err)
	}
	crds, err := apiextensions.NewForConfig(asJSON)
	if err != nil {
		return nil, fmt.Errorf("cannot create client: %w", err)
	}
	probes, err := newProber(asJSON, node)
	if err != nil {
		return nil, fmt.Errorf("cannot create client: %w", err)
	}
	return &watcher{
		definitions: definitions.NewSharedInformerFactoryWithOptions(crds, 0, definitions.WithTransform(strip)),
		reacher:     reacher{client, dial}, refusals: refusals, probes: probes, first: map[string]time.Time{},
	}, nil
}

// strip removes the fields of a definition that this package does not read, above all the large
// schemas.
func strip(object any) (any, error) {
	d, is := object.(*apiextensionsv1.CustomResourceDefinition)
	if !is {
		return object, nil
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name, UID: d.UID, ResourceVersion: d.ResourceVersion},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Conversion: d.Spec.Conversion, Group: d.Spec.Group, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: d.Spec.Names.Plural},
			Versions: withoutSchemas(d.Spec.Versions),
		},
	}, nil
}

func withoutSchemas(all []apiextensionsv1.CustomResourceDefinitionVersion) []apiextensionsv1.CustomResourceDefinitionVersion {
	var out []apiextensionsv1.CustomResourceDefinitionVersion
	for _, v := range all {
		out = append(out, apiextensionsv1.CustomResourceDefinitionVersion{Name: v.Name, Served: v.Served})
	}
	return out
}

// start starts the informers and waits until their caches are complete.
func (w *watcher) start(ctx context.Context) {
	admission, flows := w.kube.Admissionregistration().V1(), w.kube.Flowcontrol().V1()
	// Each call of Informer registers the informer with its factory, and the factory starts it.
	for range []cache.SharedIndexInformer{
		admission.ValidatingWebhookConfigurations().Informer(), admission.MutatingWebhookConfigurations().Informer(),
		admission.ValidatingAdmissionPolicyBindings().Informer(), admission.MutatingAdmissionPolicyBindings().Informer(),
		w.kube.Core().V1().Namespaces().Informer(), w.definitions.Apiextensions().V1().CustomResourceDefinitions().Informer(),
		w.apis.Apiregistration().V1().APIServices().Informer(), flows.FlowSchemas().Informer(), flows.PriorityLevelConfigurations().Informer(),
	} {
	}
	w.kube.Start(ctx.Done())
	w.definitions.Start(ctx.Done())
	w.apis.Start(ctx.Done())
	w.kube.WaitForCacheSync(ctx.Done())
	w.definitions.WaitForCacheSync(ctx.Done())
	w.apis.WaitForCacheSync(ctx.Done())
}

// check returns the present obstacles.
func (w *watcher) check(ctx context.Context) []obstacle {
	now := w.observe(time.Now())
	w.probes.run(ctx, now)
	now.throttled = w.throttles(w.probes.classified)
	known := map[backend]string{} // because many webhooks share a backend
	reach := func(b backend) string {
		why, asked := known[b]
		if !asked {
			why = w.reacher.reach(ctx, b)
			known[b] = why
		}
		return why
	}
	return judge(now, reach, calls{failed: w.refusals.recent(time.Now()), refused: w.probes.refused, unconverted: w.probes.unconverted})
}

// observe returns the state of the extensions, from the caches of the informers.
func (w *watcher) observe(now time.Time) observation {
	var out observation
	admission := w.kube.Admissionregistration().V1()
	all := labels.Everything()
	// the lister of a cache returns no errors
	validating, _ := admission.ValidatingWebhookConfigurations().Lister().List(all)
	for _, c := range validating {
		for _, h := range c.Webhooks {
			out.webhooks = append(out.webhooks, webhook{"ValidatingWebhookConfiguration", c.Name, h.Name, closed(h.FailurePolicy), backendOf(h.ClientConfig)})
		}
	}
	mutating, _ := admission.MutatingWebhookConfigurations().Lister().List(all)
	for _, c := range mutating {
		for _, h := range c.Webhooks {
			out.webhooks = append(out.webhooks, webhook{"MutatingWebhookConfiguration", c.Name, h.Name, closed(h.FailurePolicy), backendOf(h.ClientConfig)})
		}
	}
	checks, _ := admission.ValidatingAdmissionPolicyBindings().Lister().List(all)
	changes, _ := admission.MutatingAdmissionPolicyBindings().Lister().List(all)
	out.bindings = len(checks)+len(changes) > 0 || w.sealed
	kinds, _ := w.definitions.Apiextensions().V1().CustomResourceDefinitions().Lister().List(all)
	for _, d := range kinds {
		if b, has := converter(d.Spec.Conversion); has {
			out.conversions = append(out.conversions, conversion{d.Name, b, pathsOf(d)})
		}
	}
	apis, _ := w.apis.Apiregistration().V1().APIServices().Lister().List(all)
	for _, a := range apis {
		if a.Spec.Service != nil {
			out.services = append(out.services, apiService{a.Name, unavailable(a)})
		}
	}
	schemas, levels := w.flows()
	out.flows = slices.ContainsFunc(schemas, func(s *flowcontrolv1.FlowSchema) bool { return !own(s) }) ||
		slices.ContainsFunc(levels, func(l *flowcontrolv1.PriorityLevelConfiguration) bool { return !own(l) })
	namespaces, _ := w.kube.Core().V1().Namespaces().Lister().List(all)
	for _, n := range namespaces {
		if n.DeletionTimestamp != nil && now.Sub(n.DeletionTimestamp.Time) > terminatingLimit {
			out.terminating = append(out.terminating, namespace{n.Name, undeleted(n)})
		}
	}
	return out
}

// flows returns the objects of priority and fairness.
func (w *watcher) flows() ([]*flowcontrolv1.FlowSchema, []*flowcontrolv1.PriorityLevelConfiguration) {
	flows, all := w.kube.Flowcontrol().V1(), labels.Everything()
	schemas, _ := flows.FlowSchemas().Lister().List(all)
	levels, _ := flows.PriorityLevelConfigurations().Lister().List(all)
	return schemas, levels
}

// own reports whether Kubernetes sets the content of an object of priority and fairness.
func own(o metav1.Object) bool {
	return o.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey] == "true"
}

// seatless reports whether a priority level has no seats: it then serves at most one request at a
// time (apiserver, fairqueuing/queueset, canAccommodateSeatsLocked), and rejects or queues the
// others.
func seatless(l *flowcontrolv1.PriorityLevelConfiguration) bool {
	limited := l.Spec.Limited
	zero := func(n *int32) bool { return n != nil && *n == 0 }
	return limited != nil && zero(limited.NominalConcurrencyShares) && zero(limited.BorrowingLimitPercent)
}

// throttles returns the requests of the system that have no seat, with the objects that are the
// cause.
func (w *watcher) throttles(all []classification) (out []throttle) {
	schemas, levels := w.flows()
	for _, r := range all {
		s := slices.IndexFunc(schemas, func(s *flowcontrolv1.FlowSchema) bool { return string(s.UID) == r.schema })
		l := slices.IndexFunc(levels, func(l *flowcontrolv1.PriorityLevelConfiguration) bool { return string(l.UID) == r.level })
		if s >= 0 && l >= 0 && (r.rejected || seatless(levels[l])) {
			out = append(out, throttle{who: r.who, schema: schemas[s].Name, level: levels[l].Name, ownSchema: own(schemas[s]), ownLevel: own(levels[l])})
		}
	}
	return out
}

// pathsOf returns the path of the objects of a definition in each served version.
func pathsOf(d *apiextensionsv1.CustomResourceDefinition) []string {
	var out []string
	for _, v := range d.Spec.Versions {
		if v.Served {
			out = append(out, path.Join("/apis", d.Spec.Group, v.Name, d.Spec.Names.Plural))
		}
	}
	return out
}

func closed(p *admissionv1.FailurePolicyType) bool { return p == nil || *p == admissionv1.Fail }

func backendOf(c admissionv1.WebhookClientConfig) backend {
	if c.Service != nil {
		return serviceBackend(c.Service.Namespace, c.Service.Name, c.Service.Port)
	}
	if c.URL != nil {
		return backend{url: *c.URL}
	}
	return backend{}
}

func serviceBackend(namespace, name string, port *int32) backend {
	b := backend{namespace: namespace, name: name, port: 443} // 443 is the default of the API
	if port != nil {
		b.port = *port
	}
	return b
}

func converter(c *apiextensionsv1.CustomResourceConversion) (backend, bool) {
	if c == nil || c.Strategy != apiextensionsv1.WebhookConverter || c.Webhook == nil || c.Webhook.ClientConfig == nil {
		return backend{}, false
	}
	at := c.Webhook.ClientConfig
	if at.Service != nil {
		return serviceBackend(at.Service.Namespace, at.Service.Name, at.Service.Port), true
	}
	if at.URL != nil {
		return backend{url: *at.URL}, true
	}
	return backend{}, false
}

// unavailable returns the reason why the API server cannot reach the server of an APIService, or
// "".
func unavailable(a *apiregistrationv1.APIService) string {
	for _, c := range a.Status.Conditions {
		if c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// undeleted returns the reason why the content of a namespace cannot be deleted, or "".
func undeleted(n *corev1.Namespace) string {
	for _, c := range n.Status.Conditions {
		switch c.Type {
		case corev1.NamespaceDeletionDiscoveryFailure, corev1.NamespaceDeletionContentFailure, corev1.NamespaceDeletionGVParsingFailure,
			corev1.NamespaceFinalizersRemaining:
			if c.Status == corev1.ConditionTrue {
				return c.Message
			}
		}
	}
	return ""
}

package metrics

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "metrics"

const (
	// starting is the interval of checks of the registration until the API is available. It bounds
	// the time that a watcher of the start loses.
	starting = 500 * time.Millisecond
	// steady is the interval afterwards.
	steady = 10 * time.Second
	// gracePeriod is how long the component is not ready without the API. Afterwards it is ready
	// with a problem: after the deletion or replacement of the registration this API is lost, and
	// the operator must not lose the controllers of the same process, which machined restarts if it
	// does not become ready.
	gracePeriod = time.Minute
)

// Component describes the component without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.MetricsCert, nodespec.MetricsKey)
}

// Run serves until ctx is done.
func Run(ctx context.Context, env component.Env) error {
	config, err := env.WaitConfig(ctx, Name)
	if config == nil {
		return err
	}
	registrations, err := registration.NewForConfig(config) // JSON: the kind has no other encoding
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := component.NewClient(config)
	if err != nil {
		return err
	}
	all := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim))
	running := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim), component.Only("status.phase", string(corev1.PodRunning)))
	known := &store{}
	nodeLister, podLister := all.Core().V1().Nodes().Lister(), running.Core().V1().Pods().Lister()
	scraper, err := newScraper(env.Dirs, nodeLister, known)
	if err != nil {
		return err
	}
	server, err := newServer(Addresses(env.Spec)[0], env.Dirs, config, nodes{nodeLister, known, time.Now}, pods{podLister, known, time.Now})
	if err != nil {
		return err
	}
	own, stop := context.WithCancel(ctx)
	defer stop()
	all.Start(own.Done())
	running.Start(own.Done())
	served := make(chan error, 1)
	go func() { served <- server.PrepareRun().RunWithContext(own) }()
	go func() {
		all.WaitForCacheSync(own.Done())
		scraper.run(own)
	}()
	go watch(own, env, registrations, scraper)
	if err := <-served; err != nil {
		return fmt.Errorf("cannot serve: %w", err)
	}
	return nil
}

// trim removes all fields of a Node or a Pod that the component does not use. For all pods of a
// cluster they would take much memory.
func trim(object any) (any, error) {
	about := func(o metav1.Object) metav1.ObjectMeta {
		meta := component.Trimmed(o)
		meta.Labels = o.GetLabels()
		return meta
	}
	switch o := object.(type) {
	case *corev1.Node:
		return &corev1.Node{ObjectMeta: about(o), Status: corev1.NodeStatus{Addresses: o.Status.Addresses, DaemonEndpoints: o.Status.DaemonEndpoints}}, nil
	case *corev1.Pod:
		return &corev1.Pod{ObjectMeta: about(o), Spec: corev1.PodSpec{NodeName: o.Spec.NodeName}}, nil
	}
	return object, nil
}

// watch checks the API's registration until ctx is done and announces every change.
func watch(ctx context.Context, env component.Env, registrations registration.APIServicesGetter, s *scraper) {
	ticker := time.NewTicker(starting)
	defer ticker.Stop()
	began := time.Now()
	r := registrar{ca: filepath.Join(env.Dirs.Controllers, nodespec.CA), servedSince: began.UTC().Format(time.RFC3339Nano), api: registrations.APIServices()}
	var last state
	wasReady := false
	for {
		now := r.reconcile(ctx)
		if now.ready && now.detail == "" {
			now.detail = s.describe()
		}
		// A problem is reported permanently, but makes the component unready only for gracePeriod.
		if !now.ready && time.Since(began) > gracePeriod {
			now = state{ready: true, detail: nodespec.ProblemPrefix + now.detail}
		}
		if now.ready && !wasReady {
			wasReady = true
			ticker.Reset(steady)
		}
		if now != last && ctx.Err() == nil {
			env.Announce(Name, now.ready, now.detail)
			last = now
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// state is an announced state.
type state struct {
	ready  bool
	detail string
}

// served is the registration's annotation with the time since which the API is served. The
// registrar writes it if the API server considers the API unavailable: at a boot the API server
// checks before the component serves, and then at ever longer intervals, but after a change at
// once.
const served = "orlop.dev/served-since"

// registrar maintains the registration.
type registrar struct {
	ca string // file with the CAs of the component's certificate
	// the value for served, empty after it was written: other machines write their own value there
	servedSince string
	api         registration.APIServiceInterface
}

// reconcile writes the CA into the registration if necessary, and returns whether the API server
// reaches the component.
func (r *registrar) reconcile(ctx context.Context) state {
	have, err := r.api.Get(ctx, bootstrap.MetricsAPI, metav1.GetOptions{})
	if err != nil {
		return state{detail: err.Error()}
	}
	if !bootstrap.IsBuiltinMetrics(have) {
		return state{ready: true, detail: "another server provides the resource metrics API"}
	}
	bundle, err := os.ReadFile(r.ca)
	if err != nil {
		return state{detail: fmt.Sprintf("the CA of the API server: %v", err)}
	}
	late := !available(have).ready && r.servedSince != "" && have.Annotations[served] != r.servedSince
	if late || !bytes.Equal(have.Spec.CABundle, bundle) {
		if late {
			metav1.SetMetaDataAnnotation(&have.ObjectMeta, served, r.servedSince)
		}
		have.Spec.CABundle = bundle
		if have, err = r.api.Update(ctx, have, metav1.UpdateOptions{}); err != nil {
			return state{detail: fmt.Sprintf("APIService %s: cannot update: %v", bootstrap.MetricsAPI, err)}
		}
		r.servedSince = ""
	}
	return available(have)
}

// available returns the registration's status, as the API server has set it.
func available(r *apiregistrationv1.APIService) state {
	for _, c := range r.Status.Conditions {
		if c.Type == apiregistrationv1.Available {
			if c.Status == apiregistrationv1.ConditionTrue {
				return state{ready: true}
			}
			return state{detail: fmt.Sprintf("APIService %s: %s: %s", r.Name, c.Reason, c.Message)}
		}
	}
	return state{detail: fmt.Sprintf("APIService %s: the API server has not checked it yet", r.Name)}
}

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

// Name is the name of the component.
const Name = "metrics"

const (
	// starting is the time between two checks of the registration until the API is available. It is
	// short, so that the component reports at once when it is ready.
	starting = 500 * time.Millisecond
	// steady is the time between two checks after that.
	steady = 10 * time.Second
	// gracePeriod is how long the component stays unready if the API is not available. After that,
	// the component is ready with a problem. machined restarts a process with a component that does
	// not become ready. Without this limit, a client that deletes the registration would stop all
	// controllers of the process.
	gracePeriod = time.Minute
)

// Component returns the component, to which the caller adds Run.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.MetricsCert, nodespec.MetricsKey)
}

// Run scrapes the kubelets and serves the API until ctx is done. It fails if the server cannot
// start or ends.
func Run(ctx context.Context, env component.Env) error {
	config, err := env.WaitConfig(ctx, Name)
	if config == nil {
		return err
	}
	// in JSON, because APIServices have no other encoding
	registrations, err := registration.NewForConfig(config)
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

// trim returns a copy of a Node or Pod with only the fields that the component reads. This saves
// much memory in a cluster with many pods.
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

// watch checks the registration of the API until ctx is done, and announces each change of the
// state.
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
		// After gracePeriod, a problem does not make the component unready any more, but stays in
		// its detail.
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

// state is what the component announces.
type state struct {
	ready  bool
	detail string
}

// served is an annotation of the registration: the time since which this component serves the API.
// A change of the annotation makes the API server check the API at once. This is necessary after a
// boot: the first check is before the component serves, and the intervals of the next checks become
// longer and longer. The registrar writes the annotation only while the API server considers the
// API unavailable.
const served = "orlop.dev/served-since"

// registrar updates the registration of the API, the APIService object.
type registrar struct {
	ca string // file with the CAs of the component's serving certificate
	// servedSince is the value for annotation served. It is empty after the first write, because
	// the registrars of other machines write their own values to the same annotation.
	servedSince string
	api         registration.APIServiceInterface
}

// reconcile writes the CAs and the annotation served to the registration if necessary. It returns
// the state of the component: ready if the API server can reach the API, or if another server
// provides it.
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

// available returns the availability of the API that the API server has written to the status of
// the registration.
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

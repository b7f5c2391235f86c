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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
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
	// starting is between two looks at the registration until the API is available: what a watcher
	// of the start loses at most.
	starting = 500 * time.Millisecond
	// steady is between two looks afterwards.
	steady = 10 * time.Second
	// missed is how long the component is not ready without the API. Afterwards it is, and says
	// what is missing: whoever has deleted or replaced the registration has lost this API, and is
	// not to lose the controllers of the same process, which is restarted if it does not get ready.
	missed = time.Minute
)

// Component describes the component without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	client := kubeconfig.ControllersFile(spec, dirs, Name, nodespec.MetricsCert, nodespec.MetricsKey)
	return component.Component{Process: component.Controllers, Name: Name, Files: []component.File{client}}
}

// Run serves until ctx is done. rights waits until the component may do what it does.
func Run(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, rights func(context.Context) error, announce component.Announce) error {
	announce(Name, false, "waiting for the API server")
	if err := rights(ctx); err != nil {
		return nil // asked to stop before there was anything to stop
	}
	path := kubeconfig.Path(dirs.Controllers, Name)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return fmt.Errorf("%s: cannot use: %w", path, err)
	}
	registrations, err := registration.NewForConfig(config) // JSON: the kind has no other form
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	all := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(needed))
	onlyRunning := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("status.phase", string(corev1.PodRunning)).String()
	}
	running := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(needed), informers.WithTweakListOptions(onlyRunning))
	known := &book{}
	nodeLister, podLister := all.Core().V1().Nodes().Lister(), running.Core().V1().Pods().Lister()
	scraper, err := newScraper(dirs, nodeLister, known)
	if err != nil {
		return err
	}
	server, err := newServer(Addresses(spec)[0], dirs, config, nodes{nodeLister, known, time.Now}, pods{podLister, known, time.Now})
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
	go watch(own, dirs, registrations, scraper, announce)
	if err := <-served; err != nil {
		return fmt.Errorf("cannot serve: %w", err)
	}
	return nil
}

// needed keeps of a Node or a Pod what the component reads. Of all pods of a cluster the rest would
// be a lot.
func needed(object any) (any, error) {
	about := func(o metav1.Object) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: o.GetName(), Namespace: o.GetNamespace(), Labels: o.GetLabels(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		}
	}
	switch o := object.(type) {
	case *corev1.Node:
		return &corev1.Node{ObjectMeta: about(o), Status: corev1.NodeStatus{Addresses: o.Status.Addresses, DaemonEndpoints: o.Status.DaemonEndpoints}}, nil
	case *corev1.Pod:
		return &corev1.Pod{ObjectMeta: about(o), Spec: corev1.PodSpec{NodeName: o.Spec.NodeName}}, nil
	}
	return object, nil
}

// watch looks at the API's registration until ctx is done, and announces every change of what it
// finds.
func watch(ctx context.Context, dirs dirs.Dirs, registrations registration.APIServicesGetter, s *scraper, announce component.Announce) {
	ticker := time.NewTicker(starting)
	defer ticker.Stop()
	began := time.Now()
	r := registrar{ca: filepath.Join(dirs.Controllers, nodespec.CA), mark: began.UTC().Format(time.RFC3339Nano), api: registrations.APIServices()}
	var last state
	wasReady := false
	for {
		now := r.look(ctx)
		if now.ready && now.detail == "" {
			now.detail = s.describe()
		}
		// What is missing is said for ever, but held against the machine for some time only.
		if !now.ready && time.Since(began) > missed {
			now = state{ready: true, detail: nodespec.ProblemPrefix + now.detail}
		}
		if now.ready && !wasReady {
			wasReady = true
			ticker.Reset(steady)
		}
		if now != last && ctx.Err() == nil {
			announce(Name, now.ready, now.detail)
			last = now
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// state is what is announced.
type state struct {
	ready  bool
	detail string
}

// served is the registration's annotation that says since when the API is served. It is written
// when the API server has not found anybody before: at a start it asks sooner than there is
// somebody, and then in ever longer intervals, but after a change at once.
const served = "orlop.dev/served-since"

// registrar sees to the registration.
type registrar struct {
	ca string // file with the authorities that the component's certificate is by
	// what is written under served, once; empty when it was: other machines write theirs there
	mark string
	api  registration.APIServiceInterface
}

// look sees to it that the registration names the CA, and says whether the API server reaches the
// component.
func (r *registrar) look(ctx context.Context) state {
	have, err := r.api.Get(ctx, bootstrap.MetricsAPI, metav1.GetOptions{})
	if err != nil {
		return state{detail: err.Error()}
	}
	if !bootstrap.IsBuiltinMetrics(have) {
		return state{ready: true, detail: "another server has the resource metrics API"}
	}
	bundle, err := os.ReadFile(r.ca)
	if err != nil {
		return state{detail: fmt.Sprintf("the CA of the API server: %v", err)}
	}
	late := !available(have).ready && r.mark != "" && have.Annotations[served] != r.mark
	if late || !bytes.Equal(have.Spec.CABundle, bundle) {
		if late {
			metav1.SetMetaDataAnnotation(&have.ObjectMeta, served, r.mark)
		}
		have.Spec.CABundle = bundle
		if have, err = r.api.Update(ctx, have, metav1.UpdateOptions{}); err != nil {
			return state{detail: fmt.Sprintf("APIService %s: cannot be brought up to date: %v", bootstrap.MetricsAPI, err)}
		}
		r.mark = ""
	}
	return available(have)
}

// available is what the API server says of the registration.
func available(r *apiregistrationv1.APIService) state {
	for _, c := range r.Status.Conditions {
		if c.Type == apiregistrationv1.Available {
			if c.Status == apiregistrationv1.ConditionTrue {
				return state{ready: true}
			}
			return state{detail: fmt.Sprintf("APIService %s: %s: %s", r.Name, c.Reason, c.Message)}
		}
	}
	return state{detail: fmt.Sprintf("APIService %s: the API server has not looked at it yet", r.Name)}
}

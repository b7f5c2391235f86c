package offlineapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

const (
	// resyncPeriod is the largest age of the objects in the record. It does not apply to the pods
	// of the node, which the recorder watches.
	resyncPeriod = 5 * time.Minute
	// retryInterval is the delay after a failed pass.
	retryInterval = 30 * time.Second
	// settleTime is the delay between a change of the node's pods and a pass. It combines several
	// changes, and gives other clients time to create the objects to which the pods refer.
	settleTime = 2 * time.Second
	// timeout bounds a request to the API server.
	timeout = 30 * time.Second
	// maxSize is the largest size of a record in bytes. The record of a cluster with a thousand
	// nodes is smaller.
	maxSize = 128 << 20
)

// maxShown is the largest number of pods in a status text.
const maxShown = 3

// recorder maintains the record of a node.
type recorder struct {
	cluster, node string
	dir           string
	// clients with the identities of the kubelet and of the node's agent
	kubelet, agent rest.Interface
	last           [sha256.Size]byte // the hash of the objects in the last stored record
	forbidden      map[string]bool   // the volumes that the node could not read in the last pass
}

// run maintains the record until ctx is done. kubelet and agent are the paths of kubeconfigs. When
// ctx is done, run removes pods that have ended from the record.
func (k *recorder) run(ctx context.Context, kubelet, agent string, tell func(string)) error {
	own, err := client(kubelet)
	if err != nil {
		return err
	}
	others, err := client(agent)
	if err != nil {
		return err
	}
	k.kubelet, k.agent = own.Discovery().RESTClient(), others.Discovery().RESTClient()
	changed := cell.NewSignal()
	factory := informers.NewSharedInformerFactoryWithOptions(own, 0, informers.WithTransform(outline), component.Only("spec.nodeName", k.node))
	later := time.AfterFunc(settleTime, changed.Wake)
	defer later.Stop()
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if annotated(o) {
				later.Reset(settleTime)
			}
		},
		UpdateFunc: func(before, now any) {
			if (annotated(before) || annotated(now)) && !alike(before, now) {
				later.Reset(settleTime)
			}
		},
		DeleteFunc: func(o any) {
			if last, unseen := o.(cache.DeletedFinalStateUnknown); unseen {
				o = last.Obj
			}
			if annotated(o) {
				later.Reset(settleTime)
			}
		},
	}
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(handler); err != nil {
		return fmt.Errorf("Pods: cannot watch: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if err := (component.Reconciler{Changed: changed, Period: resyncPeriod, RetryInterval: retryInterval, Pass: k.pass, Report: tell}).Run(ctx); err != nil {
		return err
	}
	if !informer.HasSynced() {
		return nil
	}
	// The machine may be shutting down. Pods that have ended by now must not start again after the
	// boot.
	left := map[string]bool{}
	for _, o := range informer.GetStore().List() {
		if pod, ok := o.(*corev1.Pod); ok && startsOffline(pod) {
			left[string(pod.UID)] = true
		}
	}
	return k.prune(left)
}

// prune removes each of the node's own pods from the record if its UID is not in the map `left`. If
// none of these pods remains, prune removes the whole record. It also removes a record that it
// cannot read, and returns the error.
func (k *recorder) prune(left map[string]bool) error {
	r, err := Read(k.dir, nodespec.Spec{Cluster: k.cluster, Node: nodespec.Node{Name: k.node}})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errors.Join(err, Remove(k.dir))
	}
	all := r.Objects[pods.resource]
	before := len(all)
	all = slices.DeleteFunc(all, func(o Object) bool {
		on, _, _ := unstructured.NestedString(o, "spec", "nodeName")
		return on == k.node && !left[string((&unstructured.Unstructured{Object: o}).GetUID())]
	})
	switch r.Objects[pods.resource] = all; {
	case len(namesOf(all, k.node)) == 0:
		return Remove(k.dir)
	case len(all) == before:
		return nil
	}
	k.last = [sha256.Size]byte{}
	return writeRecord(k.dir, *r)
}

// client returns a client for the kubeconfig in a file.
func client(kubeconfig string) (kubernetes.Interface, error) {
	config, err := component.LoadConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return component.NewClient(config)
}

// outline removes the fields of a pod that alike, annotated and startsOffline do not use.
func outline(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	out := &corev1.Pod{ObjectMeta: component.Trimmed(pod, Annotation)}
	out.Generation, out.DeletionTimestamp = pod.Generation, pod.DeletionTimestamp
	out.Status.Phase, out.Status.PodIP = pod.Status.Phase, pod.Status.PodIP
	if ready(pod) {
		out.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return out, nil
}

// ready reports whether the condition Ready of a pod is true.
func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// annotated reports whether an object is a pod with the annotation, with any value.
func annotated(object any) bool {
	pod, ok := object.(*corev1.Pod)
	return ok && pod.Annotations[Annotation] != ""
}

// alike reports whether the record does not need a new pass after a pod has changed from one state
// to another. A pass is necessary when a pod gets an address or becomes ready, because the pod is
// then an endpoint of Services that the earlier record does not contain.
func alike(before, now any) bool {
	a, ok := before.(*corev1.Pod)
	b, is := now.(*corev1.Pod)
	return ok && is && a.UID == b.UID && a.Generation == b.Generation && startsOffline(a) == startsOffline(b) &&
		a.Status.PodIP == b.Status.PodIP && (ready(a) || !ready(b))
}

// pass reads the objects, stores them if they differ from the record, and returns a status text. If
// no pod has the annotation, pass removes the record.
func (k *recorder) pass(ctx context.Context) (string, error) {
	r, problems, err := k.read(ctx)
	// Deleted pods leave the record even if other objects cannot be read.
	if own, listed := r.Objects[pods.resource]; err != nil && listed {
		left := map[string]bool{}
		for _, o := range own {
			left[string((&unstructured.Unstructured{Object: o}).GetUID())] = true
		}
		err = errors.Join(err, k.prune(left))
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the objects for a start without an API server, the stored record stays: %w", err)
	}
	names := namesOf(r.Objects[pods.resource], k.node)
	if len(names) == 0 {
		k.last = [sha256.Size]byte{}
		return describe(names, problems), Remove(k.dir)
	}
	content, err := json.Marshal([]any{r.Objects, r.Missing})
	if err != nil {
		return "", fmt.Errorf("cannot encode: %w", err)
	}
	if len(content) > maxSize {
		return "", fmt.Errorf("the objects for a start without an API server are %d MiB: a record of more than %d MiB is not stored", len(content)>>20, maxSize>>20)
	}
	if sum := sha256.Sum256(content); sum != k.last {
		if err := writeRecord(k.dir, r); err != nil {
			return "", err
		}
		k.last = sum
	}
	return describe(names, problems), nil
}

// read reads the objects of a record. problems describes pods with an invalid value of the
// annotation. After an error, r contains the objects read so far.
func (k *recorder) read(ctx context.Context) (r Record, problems []string, err error) {
	r = Record{Cluster: k.cluster, Node: k.node, At: time.Now().UTC(), Objects: map[string][]Object{}}
	var own []Object
	err = list(ctx, k.kubelet, pods, "spec.nodeName="+k.node, func(o Object) { own = append(own, o) })
	if err != nil {
		return r, nil, err
	}
	var wanted []reference
	for _, o := range own {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &pod); err != nil {
			return r, nil, fmt.Errorf("a pod cannot be decoded: %w", err)
		}
		if value := pod.Annotations[Annotation]; value != "" && value != "true" && value != "false" {
			problems = append(problems, fmt.Sprintf("pod %s/%s: annotation %s is %q: expected \"true\" or \"false\"", pod.Namespace, pod.Name, Annotation, value))
		}
		if !startsOffline(&pod) {
			continue
		}
		unstructured.RemoveNestedField(o, "metadata", "managedFields")
		unstructured.RemoveNestedField(o, "metadata", "resourceVersion")
		r.Objects[pods.resource] = append(r.Objects[pods.resource], o)
		for _, ref := range references(&pod) {
			if !slices.Contains(wanted, ref) {
				wanted = append(wanted, ref)
			}
		}
	}
	if len(r.Objects[pods.resource]) == 0 {
		return r, problems, nil
	}
	if err := k.refer(ctx, &r, wanted); err != nil {
		return r, nil, err
	}
	return r, problems, k.rest(ctx, &r)
}

// refer reads the objects to which the pods refer, and adds them to the record. A name that is not
// valid for an object is skipped: the kubelet's client rejects such a name, and as a part of a path
// it could lead to another object.
//
// The API server forbids a node to read a volume that is not bound to the node's claim. For a
// moment, it also forbids to read a volume with a new binding that it does not know yet. So when a
// volume is rejected for the first time, refer returns an error, which causes another pass. If the
// volume is rejected again, the record does not contain it, and the kubelet waits for it.
func (k *recorder) refer(ctx context.Context, r *Record, wanted []reference) error {
	wanted = append(wanted, reference{csiNodes, "", k.node})
	was := k.forbidden
	k.forbidden = map[string]bool{}
	var early error
	for i := 0; i < len(wanted); i++ { // the loop adds the volumes of claims to wanted
		ref := wanted[i]
		if len(rest.IsValidPathSegmentName(ref.name)) > 0 {
			continue
		}
		o, err := get(ctx, k.kubelet, ref)
		if apierrors.IsNotFound(err) {
			r.Missing = append(r.Missing, Missing{ref.kind.resource, ref.namespace, ref.name})
			continue
		}
		if ref.kind == volumes && apierrors.IsForbidden(err) {
			if k.forbidden[ref.name] = true; !was[ref.name] {
				early = err
			}
			continue
		}
		if err != nil {
			return err
		}
		r.Objects[ref.kind.resource] = append(r.Objects[ref.kind.resource], trim(ref.kind, o))
		if volume, _, _ := unstructured.NestedString(o, "spec", "volumeName"); ref.kind == claims && volume != "" {
			wanted = append(wanted, reference{volumes, "", volume})
		}
	}
	return early
}

// The method rest reads the objects for the node's network, Services and policies, and adds them to
// the record.
func (k *recorder) rest(ctx context.Context, r *Record) error {
	for _, part := range []struct {
		kind kind
		by   rest.Interface
	}{
		{nodes, k.agent}, {namespaces, k.agent}, {policies, k.agent}, {services, k.agent}, {endpointSlices, k.agent}, {pods, k.agent},
		{csiDrivers, k.kubelet}, {runtimeClasses, k.kubelet},
	} {
		err := list(ctx, part.by, part.kind, "", func(o Object) {
			// The record already contains the node's own pods that start without an API server. The
			// node's other pods are not recorded.
			if on, _, _ := unstructured.NestedString(o, "spec", "nodeName"); part.kind != pods || on != k.node {
				r.Objects[part.kind.resource] = append(r.Objects[part.kind.resource], trim(part.kind, o))
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// list reads the objects of a kind from the API server's cache. This is the cheapest read for the
// API server; the objects may be some seconds old. list passes each object to the function take as
// soon as it is decoded, because all pods of a large cluster together would need gigabytes of
// memory.
func list(ctx context.Context, by rest.Interface, k kind, selector string, take func(Object)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request := by.Get().AbsPath(k.prefix(), k.resource).Param("resourceVersion", "0").SetHeader("Accept", "application/json")
	if selector != "" {
		request = request.Param("fieldSelector", selector)
	}
	answer, err := request.Stream(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", k.resource, err)
	}
	defer answer.Close()
	err = items(answer, func(o Object) {
		// Only the list as a whole contains the kind of its objects.
		o["kind"], o["apiVersion"] = k.name, k.version
		take(o)
	})
	if err != nil {
		return fmt.Errorf("%s: cannot decode: %w", k.resource, err)
	}
	return nil
}

// items decodes a list of the API in JSON and calls the function take for each object. For a
// truncated list, items calls take for the complete objects, and then returns an error.
func items(list io.Reader, take func(Object)) error {
	in := json.NewDecoder(list)
	if _, err := in.Token(); err != nil { // {
		return err
	}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return err
		}
		if name != "items" {
			var other json.RawMessage
			if err := in.Decode(&other); err != nil {
				return err
			}
			continue
		}
		start, err := in.Token()
		if err != nil {
			return err
		}
		if start != json.Delim('[') { // null
			continue
		}
		for in.More() {
			var o Object
			if err := in.Decode(&o); err != nil {
				return err
			}
			take(o)
		}
		if _, err := in.Token(); err != nil { // ]
			return err
		}
	}
	_, err := in.Token() // }
	return err
}

// get reads an object. The parameter by is the client.
func get(ctx context.Context, by rest.Interface, ref reference) (Object, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	path := []string{ref.kind.prefix()}
	if ref.kind.namespaced {
		path = append(path, "namespaces", ref.namespace)
	}
	raw, err := by.Get().AbsPath(append(path, ref.kind.resource, ref.name)...).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", ref.kind.resource, ref.namespace, ref.name, err)
	}
	var o Object
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, errors.Join(fmt.Errorf("%s %s/%s: cannot decode", ref.kind.resource, ref.namespace, ref.name), err)
	}
	return o, nil
}

// namesOf returns the sorted names, as NAMESPACE/NAME, of the pods that are on a node.
func namesOf(all []Object, node string) (names []string) {
	for _, o := range all {
		if on, _, _ := unstructured.NestedString(o, "spec", "nodeName"); on == node {
			u := unstructured.Unstructured{Object: o}
			names = append(names, u.GetNamespace()+"/"+u.GetName())
		}
	}
	slices.Sort(names)
	return names
}

// describe returns a status text: the pods that start without an API server, and the problems of
// other pods.
func describe(names, problems []string) string {
	text := "no pod on this node starts without an API server"
	if len(names) > 0 {
		text = "pods that start without an API server: " + some(names)
	}
	if len(problems) > 0 {
		text += "; " + some(problems)
	}
	return text
}

// some joins the first maxShown texts of a list, and counts the others.
func some(all []string) string {
	text := strings.Join(all[:min(len(all), maxShown)], ", ")
	if more := len(all) - maxShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

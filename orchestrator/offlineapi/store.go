package offlineapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/orlop-os/orlop/orchestrator/localvolumes"
)

// reason is the reason of the condition Ready of this machine's Node while the offline API server
// runs. The condition is Unknown, so the components and the machine's health consider the node not
// ready.
const reason = "NoAPIServer"

// store contains the objects of a Record, which the recorder stored while an API server was
// reachable, and the changes of the node's pods since the boot. It is in memory only and safe for
// concurrent use.
type store struct {
	node string

	mu sync.Mutex
	// resourceVersion of the last change; it counts from 1, and a real API server considers so low
	// a version expired
	version int64
	objects map[string]map[types.NamespacedName]Object
	// objects that the API server reported as missing
	missing map[reference]bool
	// EndpointSlices as recorded, before updateEndpoints
	recorded []discoveryv1.EndpointSlice
	watches  map[*watch]struct{}
}

// selection selects objects of a kind.
type selection struct {
	kind      kind
	namespace string // all if empty
	labels    labels.Selector
	fields    fields.Selector
}

// watch receives change events. A slow watch is closed, and its client has to list again.
type watch struct {
	selection
	events chan Object // the new states of changed objects; closed if the client is too slow
}

// maxPending bounds the events that a client has not read yet.
const maxPending = 256

// newStore makes a store of a record, for the state after a boot: its pods have no addresses yet
// and are not ready, and the Node has a condition about the missing API server.
func newStore(r *Record) (*store, error) {
	w := &store{node: r.Node, objects: map[string]map[types.NamespacedName]Object{}, missing: map[reference]bool{}, watches: map[*watch]struct{}{}, version: 1}
	for _, k := range kinds {
		all := map[types.NamespacedName]Object{}
		for _, o := range r.Objects[k.resource] {
			u := unstructured.Unstructured{Object: o}
			if u.GetName() == "" {
				return nil, fmt.Errorf("record: an entry of its %s has no name", k.resource)
			}
			all[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}] = o
			u.SetResourceVersion(strconv.FormatInt(w.version, 10))
		}
		w.objects[k.resource] = all
	}
	for _, m := range r.Missing {
		w.missing[reference{kind{resource: m.Resource}, m.Namespace, m.Name}] = true
	}
	for key, o := range w.objects[pods.resource] {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &pod); err != nil {
			return nil, fmt.Errorf("record: pod %s: %w", key, err)
		}
		if pod.Spec.NodeName != w.node {
			continue
		}
		if !pod.Spec.HostNetwork {
			unstructured.RemoveNestedField(o, "status", "podIP")
			unstructured.RemoveNestedField(o, "status", "podIPs")
		}
		unstructured.RemoveNestedField(o, "status", "conditions")
	}
	if o := w.objects[nodes.resource][types.NamespacedName{Name: w.node}]; o != nil {
		ready := Object{
			"type": string(corev1.NodeReady), "status": string(corev1.ConditionUnknown), "reason": reason,
			"message": "no API server is reachable; annotated pods start from the record of " + r.At.UTC().Format("2006-01-02 15:04 UTC"),
		}
		if err := unstructured.SetNestedSlice(o, []any{ready}, "status", "conditions"); err != nil {
			return nil, fmt.Errorf("record: Node %s: %w", w.node, err)
		}
		// With these annotations the controller of local volumes orders the node to destroy and to
		// copy volumes. The recorded orders are outdated, and a destroyed volume is lost. The
		// controller has to repeat the orders.
		unstructured.RemoveNestedField(o, "metadata", "annotations", localvolumes.ObsoleteAnnotation)
		unstructured.RemoveNestedField(o, "metadata", "annotations", localvolumes.CopiesAnnotation)
	}
	for key, o := range w.objects[endpointSlices.resource] {
		var s discoveryv1.EndpointSlice
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &s); err != nil {
			return nil, fmt.Errorf("record: EndpointSlice %s: %w", key, err)
		}
		w.recorded = append(w.recorded, s)
	}
	return w, w.updateEndpoints()
}

// list returns the selected objects in order of their names, and the current version. The caller
// must not change them.
func (w *store) list(s selection) (found []Object, version int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.selected(s), w.version
}

func (w *store) selected(s selection) []Object {
	var found []Object
	all := w.objects[s.kind.resource]
	for _, key := range slices.SortedFunc(maps.Keys(all), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		if s.matches(all[key]) {
			found = append(found, all[key])
		}
	}
	return found
}

// get returns an object, or nil if the record does not contain it.
func (w *store) get(k kind, key types.NamespacedName) Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects[k.resource][key]
}

// absent reports whether the API server has reported the object as missing.
func (w *store) absent(k kind, key types.NamespacedName) bool {
	return w.missing[reference{kind{resource: k.resource}, key.Namespace, key.Name}]
}

// watch starts a watch of changes since a version of this store. It rejects a later version, which
// must come from an API server. unwatch ends the watch.
func (w *store) watch(s selection, since int64) (*watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if since > w.version {
		return nil, apierrors.NewResourceExpired("the version is an API server's")
	}
	one := &watch{selection: s, events: make(chan Object, maxPending)}
	w.watches[one] = struct{}{}
	for _, o := range w.selected(s) {
		if version, err := strconv.ParseInt((&unstructured.Unstructured{Object: o}).GetResourceVersion(), 10, 64); err == nil && version > since {
			w.notify(one, o)
		}
	}
	return one, nil
}

func (w *store) unwatch(one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watches, one)
}

// patchStatus applies the kubelet's status of a pod (a strategic merge patch of the subresource
// status), and updates the endpoints of Services. It returns the new pod.
func (w *store) patchStatus(key types.NamespacedName, patch []byte) (Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod := w.objects[pods.resource][key]
	if pod == nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("pod %s is not in the record", key))
	}
	var wanted struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Status Object `json:"status"`
	}
	if err := json.Unmarshal(patch, &wanted); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if have := (&unstructured.Unstructured{Object: pod}).GetUID(); wanted.Metadata.UID != "" && wanted.Metadata.UID != have {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: pods.resource}, key.Name, fmt.Errorf("its uid is %s", have))
	}
	changed, err := strategicpatch.StrategicMergeMapPatch(runtime.DeepCopyJSON(pod), Object{"status": wanted.Status}, corev1.Pod{})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	w.put(pods, key, changed)
	return changed, w.updateEndpoints()
}

// updateEndpoints updates the recorded EndpointSlices for the present state of the node's pods.
func (w *store) updateEndpoints() error {
	own := map[types.UID]*corev1.Pod{}
	for key, o := range w.objects[pods.resource] {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &pod); err != nil {
			return fmt.Errorf("pod %s: %w", key, err)
		}
		if pod.Spec.NodeName == w.node {
			own[pod.UID] = &pod
		}
	}
	for _, recorded := range w.recorded {
		service := w.objects[services.resource][types.NamespacedName{Namespace: recorded.Namespace, Name: recorded.Labels[discoveryv1.LabelServiceName]}]
		early, _, _ := unstructured.NestedBool(service, "spec", "publishNotReadyAddresses")
		follows := updateSlice(recorded, w.node, own, early)
		o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&follows)
		if err != nil {
			return fmt.Errorf("EndpointSlice %s/%s: %w", recorded.Namespace, recorded.Name, err)
		}
		o["kind"], o["apiVersion"] = endpointSlices.name, endpointSlices.version
		key := types.NamespacedName{Namespace: recorded.Namespace, Name: recorded.Name}
		if have := w.objects[endpointSlices.resource][key]; !reflect.DeepEqual(have["endpoints"], o["endpoints"]) {
			w.put(endpointSlices, key, o)
		}
	}
	return nil
}

// updateSlice returns a recorded slice for the present pods of the node, which own contains by UID:
// an endpoint has its pod's address and readiness, and a pod without an address has no endpoint.
// early reports that the Service publishes pods that are not ready (publishNotReadyAddresses).
// Endpoints on other nodes, and endpoints that are not pods, stay unchanged.
func updateSlice(recorded discoveryv1.EndpointSlice, node string, own map[types.UID]*corev1.Pod, early bool) discoveryv1.EndpointSlice {
	out := *recorded.DeepCopy()
	out.Endpoints = nil
	for _, e := range recorded.DeepCopy().Endpoints {
		if e.NodeName == nil || *e.NodeName != node || e.TargetRef == nil || e.TargetRef.Kind != pods.name {
			out.Endpoints = append(out.Endpoints, e)
			continue
		}
		pod := own[e.TargetRef.UID]
		if pod == nil {
			continue
		}
		address := addressOf(pod, recorded.AddressType)
		if address == "" {
			continue
		}
		serves, terminating := ready(pod), false
		listed := serves || early
		e.Addresses = []string{address}
		e.Conditions = discoveryv1.EndpointConditions{Ready: &listed, Serving: &serves, Terminating: &terminating}
		out.Endpoints = append(out.Endpoints, e)
	}
	return out
}

// addressOf returns a pod's address of a family, or "".
func addressOf(pod *corev1.Pod, family discoveryv1.AddressType) string {
	for _, ip := range pod.Status.PodIPs {
		if parsed, err := netip.ParseAddr(ip.IP); err == nil && parsed.Is6() == (family == discoveryv1.AddressTypeIPv6) {
			return ip.IP
		}
	}
	return ""
}

// put replaces an object and notifies the watches that select it.
func (w *store) put(k kind, key types.NamespacedName, o Object) {
	w.version++
	(&unstructured.Unstructured{Object: o}).SetResourceVersion(strconv.FormatInt(w.version, 10))
	w.objects[k.resource][key] = o
	for one := range w.watches {
		if one.kind == k && one.matches(o) {
			w.notify(one, o)
		}
	}
}

func (w *store) notify(one *watch, o Object) {
	if _, listens := w.watches[one]; !listens {
		return
	}
	select {
	case one.events <- o:
	default:
		close(one.events)
		delete(w.watches, one)
	}
}

// matches reports whether an object of the kind is selected.
func (s selection) matches(o Object) bool {
	u := unstructured.Unstructured{Object: o}
	if s.namespace != "" && u.GetNamespace() != s.namespace {
		return false
	}
	return s.labels.Matches(labels.Set(u.GetLabels())) && s.fields.Matches(fieldsOf(o))
}

// selectable maps the supported field selectors to their paths. selectionOf rejects a request with
// any other selector.
var selectable = map[string][]string{
	metav1.ObjectNameField: {"metadata", "name"},
	"metadata.namespace":   {"metadata", "namespace"},
	"spec.nodeName":        {"spec", "nodeName"},
	"spec.clusterIP":       {"spec", "clusterIP"},
	"status.phase":         {"status", "phase"},
}

func fieldsOf(o Object) fields.Set {
	set := fields.Set{}
	for name, path := range selectable {
		if value, there, err := unstructured.NestedString(o, path...); err == nil && there {
			set[name] = value
		}
	}
	return set
}

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

// The constant reason is the reason in the condition Ready of this machine's Node while the offline
// API server runs. The status of the condition is Unknown, so the components and the health of the
// machine do not consider the node ready.
const reason = "NoAPIServer"

// store contains the objects of a Record and the changes of the node's pods since the boot. It is
// only in memory, and safe for concurrent use.
type store struct {
	node string

	mu sync.Mutex
	// resourceVersion of the last change. The versions count from 1. An API server considers such
	// low versions expired, so a client that changes to an API server lists all objects again.
	version int64
	objects map[string]map[types.NamespacedName]Object
	// the objects to which a recorded pod refers and which did not exist when the record was made
	missing map[reference]bool
	// the EndpointSlices as recorded; updateEndpoints computes the served slices from them
	recorded []discoveryv1.EndpointSlice
	watches  map[*watch]struct{}
}

// selection selects objects of a kind by namespace, labels and fields.
type selection struct {
	kind      kind
	namespace string // "" selects all namespaces
	labels    labels.Selector
	fields    fields.Selector
}

// watch receives changed objects. If the client reads too slowly, the store closes the watch, and
// the client has to list again.
type watch struct {
	selection
	events chan Object // the new states of changed objects; closed if the client is too slow
}

// maxPending is the largest number of events that a client has not read yet.
const maxPending = 256

// newStore makes a store from a record, in the state after a boot. The pods of this node are not
// ready, and pods in the pod network have no addresses yet. The condition Ready of the Node has the
// constant reason as its reason.
func newStore(r *Record) (*store, error) {
	s := &store{node: r.Node, objects: map[string]map[types.NamespacedName]Object{}, missing: map[reference]bool{}, watches: map[*watch]struct{}{}, version: 1}
	for _, k := range kinds {
		all := map[types.NamespacedName]Object{}
		for _, o := range r.Objects[k.resource] {
			u := unstructured.Unstructured{Object: o}
			if u.GetName() == "" {
				return nil, fmt.Errorf("record: an entry of its %s has no name", k.resource)
			}
			all[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}] = o
			u.SetResourceVersion(strconv.FormatInt(s.version, 10))
		}
		s.objects[k.resource] = all
	}
	for _, m := range r.Missing {
		s.missing[reference{kind{resource: m.Resource}, m.Namespace, m.Name}] = true
	}
	for key, o := range s.objects[pods.resource] {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &pod); err != nil {
			return nil, fmt.Errorf("record: pod %s: %w", key, err)
		}
		if pod.Spec.NodeName != s.node {
			continue
		}
		if !pod.Spec.HostNetwork {
			unstructured.RemoveNestedField(o, "status", "podIP")
			unstructured.RemoveNestedField(o, "status", "podIPs")
		}
		unstructured.RemoveNestedField(o, "status", "conditions")
	}
	if o := s.objects[nodes.resource][types.NamespacedName{Name: s.node}]; o != nil {
		ready := Object{
			"type": string(corev1.NodeReady), "status": string(corev1.ConditionUnknown), "reason": reason,
			"message": "no API server is reachable; annotated pods start from the record of " + r.At.UTC().Format("2006-01-02 15:04 UTC"),
		}
		if err := unstructured.SetNestedSlice(o, []any{ready}, "status", "conditions"); err != nil {
			return nil, fmt.Errorf("record: Node %s: %w", s.node, err)
		}
		// With these annotations, the controller of local volumes requests that the node destroys
		// or copies volumes. A recorded request can be out of date, and a destroyed volume is lost.
		// So the annotations are removed, and the node waits until an API server has the present
		// requests.
		annotations, _, _ := unstructured.NestedMap(o, "metadata", "annotations")
		for key := range annotations {
			if localvolumes.IsRequest(key) {
				unstructured.RemoveNestedField(o, "metadata", "annotations", key)
			}
		}
	}
	for key, o := range s.objects[endpointSlices.resource] {
		var slice discoveryv1.EndpointSlice
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &slice); err != nil {
			return nil, fmt.Errorf("record: EndpointSlice %s: %w", key, err)
		}
		s.recorded = append(s.recorded, slice)
	}
	return s, s.updateEndpoints()
}

// list returns the selected objects in the order of their names, and the current version of the
// store. The caller must not change the objects.
func (s *store) list(sel selection) (found []Object, version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.selected(sel), s.version
}

func (s *store) selected(sel selection) []Object {
	var found []Object
	all := s.objects[sel.kind.resource]
	for _, key := range slices.SortedFunc(maps.Keys(all), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		if sel.matches(all[key]) {
			found = append(found, all[key])
		}
	}
	return found
}

// get returns an object, or nil if the store does not contain it.
func (s *store) get(k kind, key types.NamespacedName) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[k.resource][key]
}

// absent reports whether the API server had no such object when the record was made.
func (s *store) absent(k kind, key types.NamespacedName) bool {
	return s.missing[reference{kind{resource: k.resource}, key.Namespace, key.Name}]
}

// watch starts a watch of the changes after the version since. If since is higher than the version
// of the store, the client has it from an API server, and watch returns an error. The method
// unwatch ends the watch.
func (s *store) watch(sel selection, since int64) (*watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if since > s.version {
		return nil, apierrors.NewResourceExpired("the version is an API server's")
	}
	w := &watch{selection: sel, events: make(chan Object, maxPending)}
	s.watches[w] = struct{}{}
	for _, o := range s.selected(sel) {
		if version, err := strconv.ParseInt((&unstructured.Unstructured{Object: o}).GetResourceVersion(), 10, 64); err == nil && version > since {
			s.notify(w, o)
		}
	}
	return w, nil
}

func (s *store) unwatch(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
}

// patchStatus applies a status from the kubelet to a pod and updates the endpoints of Services.
// patch is a strategic merge patch of the subresource status. patchStatus returns the new pod.
func (s *store) patchStatus(key types.NamespacedName, patch []byte) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.objects[pods.resource][key]
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
	s.put(pods, key, changed)
	return changed, s.updateEndpoints()
}

// updateEndpoints computes the served EndpointSlices from the recorded slices and the current state
// of the node's pods.
func (s *store) updateEndpoints() error {
	own := map[types.UID]*corev1.Pod{}
	for key, o := range s.objects[pods.resource] {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &pod); err != nil {
			return fmt.Errorf("pod %s: %w", key, err)
		}
		if pod.Spec.NodeName == s.node {
			own[pod.UID] = &pod
		}
	}
	for _, recorded := range s.recorded {
		service := s.objects[services.resource][types.NamespacedName{Namespace: recorded.Namespace, Name: recorded.Labels[discoveryv1.LabelServiceName]}]
		publishNotReady, _, _ := unstructured.NestedBool(service, "spec", "publishNotReadyAddresses")
		updated := updateSlice(recorded, s.node, own, publishNotReady)
		o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&updated)
		if err != nil {
			return fmt.Errorf("EndpointSlice %s/%s: %w", recorded.Namespace, recorded.Name, err)
		}
		o["kind"], o["apiVersion"] = endpointSlices.name, endpointSlices.version
		key := types.NamespacedName{Namespace: recorded.Namespace, Name: recorded.Name}
		if have := s.objects[endpointSlices.resource][key]; !reflect.DeepEqual(have["endpoints"], o["endpoints"]) {
			s.put(endpointSlices, key, o)
		}
	}
	return nil
}

// updateSlice returns a recorded slice with the current state of the node's pods. own contains
// these pods by UID. An endpoint gets the address and the readiness of its pod, and is removed if
// its pod has no address. With publishNotReady, the Service also publishes pods that are not ready
// (publishNotReadyAddresses). Endpoints on other nodes, and endpoints that are not pods, stay
// unchanged.
func updateSlice(recorded discoveryv1.EndpointSlice, node string, own map[types.UID]*corev1.Pod, publishNotReady bool) discoveryv1.EndpointSlice {
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
		listed := serves || publishNotReady
		e.Addresses = []string{address}
		e.Conditions = discoveryv1.EndpointConditions{Ready: &listed, Serving: &serves, Terminating: &terminating}
		out.Endpoints = append(out.Endpoints, e)
	}
	return out
}

// addressOf returns the address of a pod in an address family, or "" if the pod has none.
func addressOf(pod *corev1.Pod, family discoveryv1.AddressType) string {
	for _, ip := range pod.Status.PodIPs {
		if parsed, err := netip.ParseAddr(ip.IP); err == nil && parsed.Is6() == (family == discoveryv1.AddressTypeIPv6) {
			return ip.IP
		}
	}
	return ""
}

// put replaces an object and sends it to the watches that select it.
func (s *store) put(k kind, key types.NamespacedName, o Object) {
	s.version++
	(&unstructured.Unstructured{Object: o}).SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.objects[k.resource][key] = o
	for w := range s.watches {
		if w.kind == k && w.matches(o) {
			s.notify(w, o)
		}
	}
}

// notify sends an object to a watch. It closes the watch if the channel of the watch is full.
func (s *store) notify(w *watch, o Object) {
	if _, listens := s.watches[w]; !listens {
		return
	}
	select {
	case w.events <- o:
	default:
		close(w.events)
		delete(s.watches, w)
	}
}

// matches reports whether the selection selects the object. The caller has checked that the object
// is of the kind of the selection.
func (sel selection) matches(o Object) bool {
	u := unstructured.Unstructured{Object: o}
	if sel.namespace != "" && u.GetNamespace() != sel.namespace {
		return false
	}
	return sel.labels.Matches(labels.Set(u.GetLabels())) && sel.fields.Matches(fieldsOf(o))
}

// selectable maps each supported field selector to the path of its field. selectionOf rejects all
// other field selectors.
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

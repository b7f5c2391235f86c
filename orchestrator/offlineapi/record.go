package offlineapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Annotation is the annotation of pods that start without an API server; its value is "true". The
// machine's disk then stores the objects that the pod needs, including its Secrets.
const Annotation = "orlop.dev/start-without-api-server"

// kind is a kind of objects in a record.
type kind struct {
	resource   string // its plural, in paths
	name       string // as in an object's field kind
	version    string // with the group, as in an object's field apiVersion
	namespaced bool
}

// prefix returns the prefix of the kind's paths.
func (k kind) prefix() string {
	if k.version == "v1" {
		return "/api/v1"
	}
	return "/apis/" + k.version
}

// The kinds of a record. The offline API server rejects all other kinds.
var (
	pods           = kind{"pods", "Pod", "v1", true}
	nodes          = kind{"nodes", "Node", "v1", false}
	namespaces     = kind{"namespaces", "Namespace", "v1", false}
	services       = kind{"services", "Service", "v1", true}
	secrets        = kind{"secrets", "Secret", "v1", true}
	configMaps     = kind{"configmaps", "ConfigMap", "v1", true}
	claims         = kind{"persistentvolumeclaims", "PersistentVolumeClaim", "v1", true}
	volumes        = kind{"persistentvolumes", "PersistentVolume", "v1", false}
	endpointSlices = kind{"endpointslices", "EndpointSlice", "discovery.k8s.io/v1", true}
	policies       = kind{"networkpolicies", "NetworkPolicy", "networking.k8s.io/v1", true}
	csiDrivers     = kind{"csidrivers", "CSIDriver", "storage.k8s.io/v1", false}
	csiNodes       = kind{"csinodes", "CSINode", "storage.k8s.io/v1", false}
	runtimeClasses = kind{"runtimeclasses", "RuntimeClass", "node.k8s.io/v1", false}

	kinds = []kind{pods, nodes, namespaces, services, secrets, configMaps, claims, volumes, endpointSlices, policies, csiDrivers, csiNodes, runtimeClasses}
)

// Record is the data of the offline API server.
type Record struct {
	Cluster string    `json:"cluster"`
	Node    string    `json:"node"`
	At      time.Time `json:"at"` // when it was read
	// Objects contains the objects of each kind, by its plural: the node's pods with the
	// annotation, and the fields of other nodes' pods that policies need; the objects to which the
	// former refer; and all objects for Services, policies and the pods' network.
	Objects map[string][]Object `json:"objects"`
	// Missing lists the objects to which a pod refers and that do not exist, which is permitted for
	// optional references.
	Missing []Missing `json:"missing,omitempty"`
}

// Missing is an object that does not exist.
type Missing struct {
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Object is a Kubernetes object in its JSON form.
type Object = map[string]any

// fileName is the name of the record in its directory.
const fileName = "record.json"

// Read returns the record in a directory. For a missing record, and for a record of another cluster
// or node, it returns an error that wraps fs.ErrNotExist.
func Read(dir string, spec nodespec.Spec) (*Record, error) {
	path := filepath.Join(dir, fileName)
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("record: cannot read: %w", err)
	}
	var r Record
	if err := json.Unmarshal(content, &r); err != nil {
		return nil, fmt.Errorf("%s: cannot decode: %w", path, err)
	}
	if r.Cluster != spec.Cluster || r.Node != spec.Node.Name {
		return nil, fmt.Errorf("%s: of node %s of cluster %s, this is %s of %s: %w", path, r.Node, r.Cluster, spec.Node.Name, spec.Cluster, fs.ErrNotExist)
	}
	return &r, nil
}

// writeRecord replaces the record in a directory (0700), so that after a power cut either the old
// or the new record exists.
func writeRecord(dir string, r Record) error {
	content, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record: cannot encode: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("record: cannot create its directory: %w", err)
	}
	if err := safefile.WriteFile(filepath.Join(dir, fileName), content, 0o600); err != nil {
		return fmt.Errorf("record: cannot write: %w", err)
	}
	return nil
}

// Remove removes the record from a directory, if it exists.
func Remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record: cannot remove: %w", err)
	}
	return nil
}

// startsOffline reports whether a pod starts without an API server: it has the annotation, has not
// ended and is not in deletion.
func startsOffline(pod *corev1.Pod) bool {
	return pod.Annotations[Annotation] == "true" && pod.DeletionTimestamp == nil &&
		pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// reference is an object that a pod needs.
type reference struct {
	kind            kind
	namespace, name string
}

// references returns the Secrets, ConfigMaps and PersistentVolumeClaims of a pod's containers and
// volumes, without duplicates.
func references(pod *corev1.Pod) []reference {
	var all []reference
	add := func(k kind, name string) bool {
		if r := (reference{k, pod.Namespace, name}); !slices.Contains(all, r) {
			all = append(all, r)
		}
		return true
	}
	podutil.VisitPodSecretNames(pod, func(name string) bool { return add(secrets, name) })
	podutil.VisitPodConfigmapNames(pod, func(name string) bool { return add(configMaps, name) })
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			add(claims, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			add(claims, pod.Name+"-"+v.Name)
		}
	}
	return all
}

// trim removes the fields of an object that no component of the node uses, and fields that change
// all the time.
func trim(k kind, o Object) Object {
	unstructured.RemoveNestedField(o, "metadata", "managedFields")
	unstructured.RemoveNestedField(o, "metadata", "resourceVersion")
	switch k {
	case nodes:
		unstructured.RemoveNestedField(o, "status", "images")
		unstructured.RemoveNestedField(o, "status", "conditions")
	case pods:
		// Another node's pod: only the fields that policies use (package netpolicy), and none of
		// its contents. Its addresses are removed too: that node may have rebooted as well and
		// assigned them to other pods.
		var pod corev1.Pod
		if runtime.DefaultUnstructuredConverter.FromUnstructured(o, &pod) != nil {
			return o
		}
		out := corev1.Pod{TypeMeta: pod.TypeMeta}
		out.Name, out.Namespace, out.UID, out.Labels = pod.Name, pod.Namespace, pod.UID, pod.Labels
		out.CreationTimestamp = pod.CreationTimestamp
		out.Spec.NodeName, out.Spec.HostNetwork = pod.Spec.NodeName, pod.Spec.HostNetwork
		out.Spec.Containers, out.Spec.InitContainers = onlyPorts(pod.Spec.Containers), onlyPorts(pod.Spec.InitContainers)
		out.Status.Phase = pod.Status.Phase
		if lean, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&out); err == nil {
			return lean
		}
	}
	return o
}

func onlyPorts(containers []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range containers {
		out = append(out, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Ports: c.Ports})
	}
	return out
}

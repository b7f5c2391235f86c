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

// Annotation marks a pod that starts without an API server, with the value "true". The machine then
// stores the objects that the pod needs on its disk, including Secrets.
const Annotation = "orlop.dev/start-without-api-server"

// kind is a kind of Kubernetes objects that a record contains.
type kind struct {
	resource   string // the plural name, as in the paths of the API
	name       string // the value of an object's field kind
	version    string // the group and version, as in an object's field apiVersion
	namespaced bool
}

// prefix returns the prefix of the paths of the kind in the API.
func (k kind) prefix() string {
	if k.version == "v1" {
		return "/api/v1"
	}
	return "/apis/" + k.version
}

// The kinds of a record. The offline API server rejects requests for all other kinds.
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

// Record contains the objects that the offline API server serves.
type Record struct {
	Cluster string    `json:"cluster"`
	Node    string    `json:"node"`
	At      time.Time `json:"at"` // the time at which the recorder read the objects
	// Objects contains objects by the plural name of their kind: the node's pods with the
	// annotation, the objects to which these pods refer, and all objects for Services, policies and
	// the pod network. Of the pods of other nodes, it contains only the fields that policies need.
	Objects map[string][]Object `json:"objects"`
	// Missing lists the objects to which a pod refers but which do not exist. Optional references
	// may refer to such objects.
	Missing []Missing `json:"missing,omitempty"`
}

// Missing names an object that did not exist when the record was made.
type Missing struct {
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Object is a Kubernetes object in its JSON form.
type Object = map[string]any

// fileName is the name of the record's file in its directory.
const fileName = "record.json"

// Read returns the record in a directory. If there is no record, or if it belongs to another
// cluster or node, the error wraps fs.ErrNotExist.
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

// writeRecord replaces the record in a directory, which it creates with mode 0700. After a power
// cut, either the old or the new record exists.
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

// Remove removes the record from a directory. A missing record is not an error.
func Remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record: cannot remove: %w", err)
	}
	return nil
}

// startsOffline reports whether a pod starts without an API server: the pod has the annotation, has
// not ended and is not being deleted.
func startsOffline(pod *corev1.Pod) bool {
	return pod.Annotations[Annotation] == "true" && pod.DeletionTimestamp == nil &&
		pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// reference names an object that a pod needs.
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

// trim removes the fields of an object that no component of the node uses, and the fields that
// change constantly.
func trim(k kind, o Object) Object {
	unstructured.RemoveNestedField(o, "metadata", "managedFields")
	unstructured.RemoveNestedField(o, "metadata", "resourceVersion")
	switch k {
	case nodes:
		unstructured.RemoveNestedField(o, "status", "images")
		unstructured.RemoveNestedField(o, "status", "conditions")
	case pods:
		// trim retains only those fields of a pod of another node that policies use (package
		// netpolicy). It also removes the addresses of the pod, because the other node may have
		// rebooted and assigned the addresses to other pods.
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

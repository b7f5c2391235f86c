package addons

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Health is the health of an object.
type Health int

const (
	Healthy  Health = iota
	Waiting         // the object makes progress, or waits for another object
	Degraded        // the object cannot become healthy without a change
)

// HealthOf returns the health of a live object, and the reason if it is not healthy. For a kind of
// Kubernetes kindRules decides, for any other kind the conditions of the object.
func HealthOf(o *unstructured.Unstructured) (Health, string) {
	if o.GetDeletionTimestamp() != nil {
		if f := o.GetFinalizers(); len(f) > 0 {
			return Waiting, "is being deleted, and waits for " + strings.Join(f, ", ")
		}
		return Waiting, "is being deleted"
	}
	status := fields{o.Object}
	if seen, reported := status.number("status", "observedGeneration"); reported && seen < o.GetGeneration() {
		return Waiting, "its change has not been seen yet"
	}
	gk := o.GroupVersionKind().GroupKind()
	if r := kindRules[gk]; r.health != nil {
		return r.health(status)
	}
	if isCustom(Item{Group: gk.Group}) {
		return customHealth(status)
	}
	return Healthy, ""
}

// classOf returns the item of a StorageClass.
func classOf(name string) Item {
	return Item{Group: "storage.k8s.io", Version: "v1", Kind: "StorageClass", Resource: "storageclasses", Name: name}
}

// The annotations that the volume controller or the scheduler sets on a claim when it begins to
// provision the volume (k8s.io/component-helpers/storage/volume).
const (
	claimProvisioner     = "volume.kubernetes.io/storage-provisioner"
	claimProvisionerBeta = "volume.beta.kubernetes.io/storage-provisioner"
	claimNode            = "volume.kubernetes.io/selected-node"
)

// waitsForConsumer reports whether a claim has no volume only because no pod uses the claim yet.
// Its class then binds at the first consumer (WaitForFirstConsumer); an example is the claim of a
// CronJob. If the class cannot be read (nil), the function reports whether no controller has begun
// to provision the claim.
func waitsForConsumer(claim, class *unstructured.Unstructured) bool {
	annotations := claim.GetAnnotations()
	if annotations[claimNode] != "" {
		return false // a pod uses the claim and waits for the volume
	}
	if class != nil {
		return fields{class.Object}.text("volumeBindingMode") == "WaitForFirstConsumer"
	}
	return annotations[claimProvisioner] == "" && annotations[claimProvisionerBeta] == ""
}

// healthyIf returns Healthy if a condition is true, and else Waiting.
func healthyIf(c condition, otherwise string) (Health, string) {
	if c.true() {
		return Healthy, ""
	}
	return Waiting, c.why(otherwise)
}

// fields are the fields of an object.
type fields struct{ object map[string]any }

func (f fields) number(path ...string) (int64, bool) {
	n, found, err := unstructured.NestedInt64(f.object, path...)
	return n, found && err == nil
}

func (f fields) text(path ...string) string {
	s, _, _ := unstructured.NestedString(f.object, path...)
	return s
}

// observed reports whether the controller of the object has seen the object at all.
func (f fields) observed() bool {
	n, _ := f.number("status", "observedGeneration")
	return n > 0
}

// condition is an entry of status.conditions, or nil.
type condition map[string]any

func (f fields) condition(kind string) condition {
	all, _, _ := unstructured.NestedSlice(f.object, "status", "conditions")
	for _, c := range all {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			return m
		}
	}
	return nil
}

func (c condition) text(field string) string { s, _ := c[field].(string); return s }
func (c condition) true() bool               { return c.text("status") == "True" }
func (c condition) false() bool              { return c.text("status") == "False" }

// why returns the text means, followed by the message of the condition if it has one.
func (c condition) why(means string) string {
	if message := c.text("message"); message != "" {
		return means + ": " + oneLine(message)
	}
	return means
}

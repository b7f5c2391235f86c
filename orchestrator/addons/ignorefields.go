package addons

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ignoreAnnotation lists the fields of an object that are applied only at its creation and then
// left to other managers: paths from the top, with dots, separated by commas, such as
// "spec.replicas, data.ca". A list is left as a whole.
const ignoreAnnotation = "orlop.dev/addon-ignore-fields"

// withoutIgnored returns the body to apply to a live object, without the fields that other managers
// set on purpose. These are the number of replicas, if a controller sets it through the subresource
// scale, as an autoscaler does, and the fields of ignoreAnnotation. They retain their value. A
// number that a user has set (kubectl scale) is reverted like every manual change.
func withoutIgnored(body, live *unstructured.Unstructured) *unstructured.Unstructured {
	if live == nil {
		return body
	}
	scaled, left := scaledFields(live), body.GetAnnotations()[ignoreAnnotation]
	if len(scaled) == 0 && left == "" {
		return body
	}
	body = body.DeepCopy()
	for _, path := range scaled {
		// The present value of the object is not applied: between the read and the apply the
		// autoscaler may set another value. The owner of the field keeps it.
		unstructured.RemoveNestedField(body.Object, path...)
	}
	for path := range strings.SplitSeq(left, ",") {
		keepLiveValue(body.Object, live.Object, strings.Split(strings.TrimSpace(path), "."))
	}
	return body
}

// keepLiveValue sets a field to its live value. To omit the field would delete it if it was applied
// when the object was created (kubernetes.io, "Server-Side Apply", field management). Fields that
// identify the object cannot be ignored.
func keepLiveValue(body, live map[string]any, path []string) {
	switch {
	case path[0] == "" || path[0] == "apiVersion" || path[0] == "kind" || path[0] == "metadata" && (len(path) < 3 || path[1] != "annotations" && path[1] != "labels"):
		return
	}
	value, found, err := unstructured.NestedFieldCopy(live, path...)
	switch {
	case err != nil:
	case found:
		// If a parent is not a mapping, the field stays as it is.
		_ = unstructured.SetNestedField(body, value, path...)
	default:
		unstructured.RemoveNestedField(body, path...)
	}
}

// scaledFields returns the fields of a live object that a controller has set last through the
// subresource scale: spec.replicas, or the specReplicasPath of a custom resource.
func scaledFields(live *unstructured.Unstructured) (all [][]string) {
	for _, m := range live.GetManagedFields() {
		if m.Subresource != "scale" || strings.HasPrefix(m.Manager, "kubectl") || m.FieldsV1 == nil {
			continue
		}
		var owned map[string]any
		if json.Unmarshal(m.FieldsV1.Raw, &owned) == nil {
			all = append(all, specFields(owned)...)
		}
	}
	return all
}

// specFields returns the paths below spec in a field set (sigs.k8s.io/structured-merge-diff,
// FieldsV1: "f:" before each name, and nothing below a leaf).
func specFields(owned map[string]any) (all [][]string) {
	var below func(set any, path []string)
	below = func(set any, path []string) {
		fields, _ := set.(map[string]any)
		deeper := false
		for name, inner := range fields {
			if field, ok := strings.CutPrefix(name, "f:"); ok {
				deeper = true
				below(inner, append(slices.Clone(path), field))
			}
		}
		if !deeper && len(path) > 1 {
			all = append(all, path)
		}
	}
	below(owned["f:spec"], []string{"spec"})
	return all
}

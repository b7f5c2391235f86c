package addons

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// leaveAnnotation names the fields of an object that are applied when it is made, and left to
// others then: paths from the top, with dots, divided by commas, such as "spec.replicas, data.ca".
// A list is left as a whole.
const leaveAnnotation = "orlop.dev/addon-leave"

// yielding is what is applied to a live object: without what others set on purpose. Those are the
// number of replicas where a controller sets it through the subresource scale, as an autoscaler
// does, and the fields that leaveAnnotation names. They keep the value that they have. A number
// that a person has set (kubectl scale) is put back like every change by hand.
func yielding(body, live *unstructured.Unstructured) *unstructured.Unstructured {
	if live == nil {
		return body
	}
	scaled, left := scaledFields(live), body.GetAnnotations()[leaveAnnotation]
	if len(scaled) == 0 && left == "" {
		return body
	}
	body = body.DeepCopy()
	for _, path := range scaled {
		// Not the value of the object: between reading and applying the autoscaler may set another
		// one. Who owns the field keeps it.
		unstructured.RemoveNestedField(body.Object, path...)
	}
	for path := range strings.SplitSeq(left, ",") {
		keep(body.Object, live.Object, strings.Split(strings.TrimSpace(path), "."))
	}
	return body
}

// keep gives a field the value that it has. Leaving it out would delete it where it was applied
// when the object was made (kubernetes.io, "Server-Side Apply", field management). What an object
// is known by is not left to others.
func keep(body, live map[string]any, path []string) {
	switch {
	case path[0] == "" || path[0] == "apiVersion" || path[0] == "kind" || path[0] == "metadata" && (len(path) < 3 || path[1] != "annotations" && path[1] != "labels"):
		return
	}
	value, found, err := unstructured.NestedFieldCopy(live, path...)
	switch {
	case err != nil:
	case found:
		// on the way is what is no mapping: it stays as it is
		_ = unstructured.SetNestedField(body, value, path...)
	default:
		unstructured.RemoveNestedField(body, path...)
	}
}

// scaledFields are the fields of a live object that a controller has set last through the
// subresource scale: spec.replicas, or what a custom resource has instead (specReplicasPath).
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

// specFields are the paths below spec of a set of fields (sigs.k8s.io/structured-merge-diff,
// FieldsV1: "f:" before each name, and nothing below the last one).
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

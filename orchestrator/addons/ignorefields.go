package addons

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// ignoreAnnotation lists the fields of an object that are applied only at its creation and then
// left to other managers. The value is a list of paths from the top of the object, with dots,
// separated by commas, such as "spec.replicas, data.ca". A path can name a list as a whole, but not
// an item of it.
const ignoreAnnotation = "orlop.dev/addon-ignore-fields"

// withoutIgnored returns the body to apply to a live object, without the fields that other managers
// set on purpose. Two groups of fields retain their live value: scaled, the fields that an
// autoscaler sets (autoscaledFields), and the fields in ignoreAnnotation.
func withoutIgnored(body, live *unstructured.Unstructured, scaled [][]string) *unstructured.Unstructured {
	if live == nil {
		return body
	}
	ignored := body.GetAnnotations()[ignoreAnnotation]
	if len(scaled) == 0 && ignored == "" {
		return body
	}
	body = body.DeepCopy()
	for _, path := range scaled {
		// The body omits the field and does not repeat the live value, because the autoscaler may
		// set another value between the read and the apply. The field stays, because the autoscaler
		// owns it.
		unstructured.RemoveNestedField(body.Object, path...)
	}
	for path := range strings.SplitSeq(ignored, ",") {
		keepLiveValue(body.Object, live.Object, strings.Split(strings.TrimSpace(path), "."))
	}
	return body
}

// keepLiveValue sets a field of body to its live value. If the field was applied at the creation of
// the object, an apply without the field would delete it (kubernetes.io, "Server-Side Apply", field
// management). Fields that identify the object cannot be ignored.
func keepLiveValue(body, live map[string]any, path []string) {
	switch {
	case path[0] == "" || path[0] == "apiVersion" || path[0] == "kind" || path[0] == "metadata" && (len(path) < 3 || path[1] != "annotations" && path[1] != "labels"):
		return
	}
	value, found, err := unstructured.NestedFieldCopy(live, path...)
	switch {
	case err != nil:
	case found:
		// If a parent is not a mapping, SetNestedField fails and body stays unchanged.
		_ = unstructured.SetNestedField(body, value, path...)
	default:
		unstructured.RemoveNestedField(body, path...)
	}
}

// autoscalerExists reports whether a HorizontalPodAutoscaler scales an item.
type autoscalerExists func(ctx context.Context, i Item) (bool, error)

// autoscaledFields returns the fields of a live object that an autoscaler sets. managedFields names
// the last controller that set a field through the subresource scale, even after the autoscaler was
// deleted. If the controller of HorizontalPodAutoscalers has set the field, and no
// HorizontalPodAutoscaler scales the object any more, the manifest sets the field again. Another
// controller may have autoscalers of a kind that is unknown here, so the field stays with that
// controller, and the note says so. A number that a user has set (kubectl scale) is reverted like
// every manual change.
func autoscaledFields(ctx context.Context, o Object, live *unstructured.Unstructured, exists autoscalerExists) (fields [][]string, note string, err error) {
	entries := scaleEntries(live)
	if len(entries) == 0 {
		return nil, "", nil
	}
	scaled, err := exists(ctx, o.Item)
	if err != nil {
		return nil, "", err
	}
	for _, e := range entries {
		if !scaled && (e.manager == upstreamManager || e.manager == ownManager()) {
			continue
		}
		fields = append(fields, e.fields...)
		if !scaled {
			note = fmt.Sprintf("%s: %s is left to %s, which has set it; kubectl scale, to another number, returns it to the manifest", o, strings.Join(e.fields[0], "."), e.manager)
		}
	}
	return fields, note, nil
}

// upstreamManager is the field manager of upstream's kube-controller-manager, which scales objects
// for HorizontalPodAutoscalers.
const upstreamManager = "kube-controller-manager"

// ownManager returns the field manager of kube-controller-manager in this program. A request that
// names no field manager gets the first part of its User-Agent, which is the name of the program.
func ownManager() string {
	name, _, _ := strings.Cut(rest.DefaultKubernetesUserAgent(), "/")
	return name
}

// scaleEntry holds the fields that a controller has set last through the subresource scale:
// spec.replicas, or the specReplicasPath of a custom resource.
type scaleEntry struct {
	manager string
	fields  [][]string // at least one
}

// scaleEntries returns the entries of a live object, without those of users.
func scaleEntries(live *unstructured.Unstructured) (all []scaleEntry) {
	for _, m := range live.GetManagedFields() {
		if m.Subresource != "scale" || strings.HasPrefix(m.Manager, "kubectl") || m.FieldsV1 == nil {
			continue
		}
		var owned map[string]any
		if json.Unmarshal(m.FieldsV1.Raw, &owned) != nil {
			continue
		}
		if fields := specFields(owned); len(fields) > 0 {
			all = append(all, scaleEntry{m.Manager, fields})
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

package component

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MergePatch returns a merge patch for this version of an object only. The API server rejects it as
// a conflict if another client has changed the object.
func MergePatch(object metav1.Object, change map[string]any) ([]byte, error) {
	meta, _ := change["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["uid"], meta["resourceVersion"] = object.GetUID(), object.GetResourceVersion()
	change["metadata"] = meta
	return json.Marshal(change)
}

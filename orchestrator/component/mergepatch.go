package component

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MergePatch is a merge patch of this version of an object, and of no other: it is refused as a conflict
// when somebody was faster.
func MergePatch(object metav1.Object, change map[string]any) ([]byte, error) {
	meta, _ := change["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["uid"], meta["resourceVersion"] = object.GetUID(), object.GetResourceVersion()
	change["metadata"] = meta
	return json.Marshal(change)
}

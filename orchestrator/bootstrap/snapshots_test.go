package bootstrap

import (
	"encoding/json"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSnapshotDefinitions checks that the API server accepts the definitions, and preserves objects
// with all fields of upstream's types.
func TestSnapshotDefinitions(t *testing.T) {
	now, size, text := metav1.NewTime(time.Unix(1, 0).UTC()), resource.MustParse("1Gi"), "x"
	failure := &snapshotv1.VolumeSnapshotError{Time: &now, Message: &text}
	full := map[string]any{
		"VolumeSnapshot": &snapshotv1.VolumeSnapshot{
			Spec: snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: &text, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &text}},
			Status: &snapshotv1.VolumeSnapshotStatus{
				BoundVolumeSnapshotContentName: &text, CreationTime: &now, ReadyToUse: new(true), RestoreSize: &size, Error: failure, VolumeGroupSnapshotName: &text,
			},
		},
		"VolumeSnapshotContent": &snapshotv1.VolumeSnapshotContent{
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: text, Name: text, UID: "u", Kind: text, APIVersion: text, ResourceVersion: text, FieldPath: text},
				DeletionPolicy:    snapshotv1.VolumeSnapshotContentRetain, Driver: text, VolumeSnapshotClassName: &text,
				Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &text}, SourceVolumeMode: new(corev1.PersistentVolumeFilesystem),
			},
			Status: &snapshotv1.VolumeSnapshotContentStatus{
				SnapshotHandle: &text, CreationTime: new(int64(1)), RestoreSize: new(int64(2)), ReadyToUse: new(false), Error: failure, VolumeGroupSnapshotHandle: &text,
			},
		},
		"VolumeSnapshotClass": &snapshotv1.VolumeSnapshotClass{
			Driver: text, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Parameters: map[string]string{"a": "b"},
		},
	}
	for _, d := range snapshotDefinitions() {
		d = d.DeepCopy()
		apiextensionsv1.SetDefaults_CustomResourceDefinition(d)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.Spec)
		var internal apiextensions.CustomResourceDefinition
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(d, &internal, nil); err != nil {
			t.Fatal(err)
		}
		internal.Status.StoredVersions = []string{"v1"}
		for _, err := range validation.ValidateCustomResourceDefinition(t.Context(), &internal) {
			t.Errorf("%s: %v", d.Name, err)
		}
		var props apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(d.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
			t.Fatal(err)
		}
		structural, err := schema.NewStructural(&props)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(full[d.Spec.Names.Kind])
		if err != nil {
			t.Fatal(err)
		}
		var before, after map[string]any
		if err := json.Unmarshal(raw, &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &after); err != nil {
			t.Fatal(err)
		}
		pruning.Prune(after, structural, true)
		if !equality.Semantic.DeepEqual(before, after) {
			t.Errorf("%s: the API server stores the object\n%v\nas\n%v", d.Name, before, after)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/localvolumes"
)

// storing is a node of the test that reports its volumes, in place of a real node.
type storing struct {
	name  string
	admin kubernetes.Interface
	size  int64 // of its DATA partition, in bytes
}

// report writes the report of the node. If the size is 1600 MiB, 960 MiB can be allocated.
func (s storing) report(ctx context.Context, t *testing.T, r localvolumes.Report) {
	t.Helper()
	r.Filesystem, r.Size = "f1", s.size
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{localvolumes.ReportAnnotation: string(text)}}})
	if err == nil {
		_, err = s.admin.CoreV1().Nodes().Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// claim creates a claim of the default class, and a pod that uses the claim. source is the source
// of the claim, or nil.
func (s storing) claim(ctx context.Context, t *testing.T, name, size string, source *corev1.TypedLocalObjectReference) {
	t.Helper()
	_, err := s.admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
			DataSource:  source,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := plainPod(name)
	pod.Spec.NodeSelector = nil
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	if _, err := s.admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// localVolumes checks local volumes with the real scheduler and upstream's controllers. A claim
// without a class gets a volume on the node of its pod. The scheduler avoids a full node. A claim
// can grow. The space of a deleted volume becomes free when the node has destroyed the data.
func localVolumes(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	node := storing{"disk-1", admin, 1600 << 20}
	made, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.name, Labels: map[string]string{corev1.LabelHostname: node.name}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.CoreV1().Nodes().Delete(context.Background(), node.name, metav1.DeleteOptions{})
	made.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10"), corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi")}
	made.Status.Capacity = made.Status.Allocatable
	patch, err := json.Marshal(map[string]any{"status": made.Status})
	if err == nil {
		_, err = admin.CoreV1().Nodes().Patch(ctx, node.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		t.Fatal(err)
	}
	await := func(event string, poll func(ctx context.Context) (done bool, last string, err error)) {
		t.Helper()
		last := ""
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (done bool, err error) {
			done, last, err = poll(ctx)
			return done, err
		})
		if err != nil {
			t.Fatalf("%s: %v; last: %s", event, err, last)
		}
	}
	capacity := func(want int64) {
		t.Helper()
		await(fmt.Sprintf("a capacity of %d MiB", want), func(ctx context.Context) (bool, string, error) {
			list, err := admin.StorageV1().CSIStorageCapacities("kube-system").List(ctx, metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 {
				return false, fmt.Sprint(list), err
			}
			have := list.Items[0]
			return have.StorageClassName == bootstrap.LocalClass && have.NodeTopology.MatchLabels[corev1.LabelHostname] == node.name && have.Capacity.Value() == want<<20, have.Capacity.String(), nil
		})
	}
	bound := func(name string) *corev1.PersistentVolumeClaim {
		t.Helper()
		var claim *corev1.PersistentVolumeClaim
		await(name+" is bound, and its pod has a node", func(ctx context.Context) (_ bool, _ string, err error) {
			if claim, err = admin.CoreV1().PersistentVolumeClaims("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
				return false, "", err
			}
			pod, err := admin.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
			return err == nil && claim.Status.Phase == corev1.ClaimBound && pod.Spec.NodeName == node.name, fmt.Sprintf("%+v %+v", claim, pod.Status), err
		})
		return claim
	}
	capacityOf := func(name string) string {
		v, err := admin.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return v.Spec.Capacity.Storage().String()
	}

	node.report(ctx, t, localvolumes.Report{})
	capacity(960)
	node.claim(ctx, t, "small", "512Mi", nil)
	claim := bound("small")
	if claim.Spec.VolumeName != "pvc-"+string(claim.UID) || *claim.Spec.StorageClassName != bootstrap.LocalClass {
		t.Errorf("%+v", claim.Spec)
	}
	capacity(448)
	node.report(ctx, t, localvolumes.Report{Volumes: map[string]int64{claim.Spec.VolumeName: 512 << 20}})

	node.claim(ctx, t, "large", "600Mi", nil)
	await("the pod of a claim that fits on no node is unschedulable", func(ctx context.Context) (bool, string, error) {
		pod, err := admin.CoreV1().Pods("default").Get(ctx, "large", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, "did not have enough free storage")
		}), fmt.Sprintf("%+v", pod.Status.Conditions), nil
	})

	grow := []byte(`{"spec":{"resources":{"requests":{"storage":"768Mi"}}}}`)
	if _, err := admin.CoreV1().PersistentVolumeClaims("default").Patch(ctx, "small", types.MergePatchType, grow, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the kubelet is requested to raise the limit", func(ctx context.Context) (bool, string, error) {
		c, err := admin.CoreV1().PersistentVolumeClaims("default").Get(ctx, "small", metav1.GetOptions{})
		return err == nil && c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizePending &&
			c.Status.AllocatedResources.Storage().String() == "768Mi" && capacityOf(claim.Spec.VolumeName) == "768Mi", fmt.Sprintf("%+v", c.Status), err
	})
	capacity(192)

	now := int64(0)
	if err := admin.CoreV1().Pods("default").Delete(ctx, "small", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	if err := admin.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "small", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the node is requested to destroy the volume", func(ctx context.Context) (bool, string, error) {
		n, err := admin.CoreV1().Nodes().Get(ctx, node.name, metav1.GetOptions{})
		return err == nil && n.Annotations[localvolumes.ObsoleteAnnotation] == `["`+claim.Spec.VolumeName+`"]`, fmt.Sprint(n.Annotations), err
	})
	if have := capacityOf(claim.Spec.VolumeName); have != "768Mi" {
		t.Errorf("the volume is gone before the node has destroyed its data: %s", have)
	}
	node.report(ctx, t, localvolumes.Report{Removed: []string{claim.Spec.VolumeName}})
	await("the volume is deleted", func(ctx context.Context) (bool, string, error) {
		_, err := admin.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return false, "it still exists", err
	})
	bound("large")
	capacity(360)
	localSnapshots(ctx, t, node, await)
	if err := admin.CoreV1().Pods("default").Delete(ctx, "large", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Error(err)
	}
}

// localSnapshots checks the life of a snapshot with the real definitions: its space is allocated,
// the node takes the snapshot, the snapshot becomes ready, and its unused space becomes free. A
// claim from the snapshot, and a clone, are bound before their pods are scheduled. In the end
// everything is deleted. The claim "large" has 600 of the node's 960 MiB.
func localSnapshots(ctx context.Context, t *testing.T, node storing, await func(event string, poll func(ctx context.Context) (bool, string, error))) {
	api := node.admin.CoreV1().RESTClient()
	const all = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots"
	get := func(ctx context.Context) (snapshotv1.VolumeSnapshot, error) {
		var s snapshotv1.VolumeSnapshot
		raw, err := api.Get().AbsPath(all + "/kept").Do(ctx).Raw()
		if err == nil {
			err = json.Unmarshal(raw, &s)
		}
		return s, err
	}
	annotation := func(event, name, want string) {
		t.Helper()
		await(event, func(ctx context.Context) (bool, string, error) {
			n, err := node.admin.CoreV1().Nodes().Get(ctx, node.name, metav1.GetOptions{})
			return err == nil && n.Annotations[name] == want, fmt.Sprintf("%v, want %s", n.Annotations, want), err
		})
	}
	state := func(event string, is func(s snapshotv1.VolumeSnapshotStatus) bool) {
		t.Helper()
		await(event, func(ctx context.Context) (bool, string, error) {
			s, err := get(ctx)
			text, _ := json.Marshal(s)
			return err == nil && s.Status != nil && is(*s.Status), string(text), err
		})
	}
	for _, bad := range []string{
		`{"source":{}}`, `{"source":{"persistentVolumeClaimName":"large","volumeSnapshotContentName":"x"}}`, `{"source":{"persistentVolumeClaimName":"large"},"volumeSnapshotClassName":""}`,
	} {
		body := `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"name":"bad"},"spec":` + bad + `}`
		if err := api.Post().AbsPath(all).Body([]byte(body)).Do(ctx).Error(); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	claim, err := node.admin.CoreV1().PersistentVolumeClaims("default").Get(ctx, "large", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volume := claim.Spec.VolumeName
	wanted := []byte(`{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"name":"kept"},"spec":{"source":{"persistentVolumeClaimName":"large"}}}`)
	if err := api.Post().AbsPath(all).Body(wanted).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	state("there is no space for the snapshot", func(s snapshotv1.VolumeSnapshotStatus) bool {
		return s.Error != nil && strings.Contains(*s.Error.Message, "has room for 360 MiB, and the snapshot may need 600 MiB") && !*s.ReadyToUse
	})
	node.size = 3200 << 20 // the disk grows: 1920 MiB can be allocated
	node.report(ctx, t, localvolumes.Report{Volumes: map[string]int64{volume: 600 << 20}})
	s, err := get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	name := "snapshot-" + string(s.UID)
	annotation("the node is requested to make the copy", localvolumes.CopiesAnnotation, fmt.Sprintf(`[{"name":%q,"of":%q,"size":%d}]`, name, volume, 600<<20))
	node.report(ctx, t, localvolumes.Report{Volumes: map[string]int64{volume: 600 << 20}, Waits: map[string]string{name: "volume is used by pod default/large"}})
	state("the snapshot waits for the pod", func(s snapshotv1.VolumeSnapshotStatus) bool {
		return s.Error != nil && strings.Contains(*s.Error.Message, "default/large") && !*s.ReadyToUse && *s.BoundVolumeSnapshotContentName == "snapcontent-"+strings.TrimPrefix(name, "snapshot-")
	})
	node.claim(ctx, t, "restored", "600Mi", &corev1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "kept"})
	node.report(ctx, t, localvolumes.Report{Volumes: map[string]int64{volume: 600 << 20, name: 16 << 20}, Created: map[string]int64{name: 1700000000}})
	state("the snapshot is ready", func(s snapshotv1.VolumeSnapshotStatus) bool {
		return *s.ReadyToUse && s.Error == nil && s.CreationTime.Unix() == 1700000000 && s.RestoreSize.Value() == 600<<20
	})
	filled := func(name, source string) string {
		t.Helper()
		var uid types.UID
		await(name+" is bound on the node of its source", func(ctx context.Context) (bool, string, error) {
			c, err := node.admin.CoreV1().PersistentVolumeClaims("default").Get(ctx, name, metav1.GetOptions{})
			uid = c.UID
			return err == nil && c.Status.Phase == corev1.ClaimBound, fmt.Sprintf("%+v", c), err
		})
		annotation("the node is requested to fill the volume", localvolumes.CopiesAnnotation, fmt.Sprintf(`[{"name":"pvc-%s","of":%q,"size":%d}]`, uid, source, 600<<20))
		return "pvc-" + string(uid)
	}
	restored := filled("restored", name)
	node.report(ctx, t, localvolumes.Report{Volumes: map[string]int64{volume: 600 << 20, name: 16 << 20, restored: 600 << 20}, Created: map[string]int64{restored: 1700000001}})
	annotation("no further copy is requested", localvolumes.CopiesAnnotation, "")
	await("the pod of the claim has the node", func(ctx context.Context) (bool, string, error) {
		pod, err := node.admin.CoreV1().Pods("default").Get(ctx, "restored", metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName == node.name, fmt.Sprintf("%+v", pod.Status), err
	})
	node.claim(ctx, t, "clone", "600Mi", &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "restored"})
	clone := filled("clone", restored)

	// Everything is deleted. The object of the snapshot is deleted only after the node has
	// destroyed its data.
	node.report(ctx, t, localvolumes.Report{
		Volumes: map[string]int64{volume: 600 << 20, name: 16 << 20, restored: 600 << 20, clone: 600 << 20}, Created: map[string]int64{clone: 1700000002},
	})
	annotation("no further copy is requested", localvolumes.CopiesAnnotation, "")
	if err := api.Delete().AbsPath(all + "/kept").Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	annotation("the node is requested to destroy the snapshot", localvolumes.ObsoleteAnnotation, fmt.Sprintf(`[%q]`, name))
	if _, err := get(ctx); err != nil {
		t.Errorf("the snapshot is gone before the node has destroyed its data: %v", err)
	}
	node.report(ctx, t, localvolumes.Report{Volumes: map[string]int64{volume: 600 << 20, restored: 600 << 20, clone: 600 << 20}, Removed: []string{name}})
	await("the snapshot is deleted", func(ctx context.Context) (bool, string, error) {
		_, err := get(ctx)
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return false, "it still exists", err
	})
	now := int64(0)
	for _, name := range []string{"restored", "clone"} {
		if err := node.admin.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
	}
}

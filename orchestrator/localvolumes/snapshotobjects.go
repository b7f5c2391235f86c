package localvolumes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
)

// place is the value of promiseAnnotation. Node is the place of the pool (placeOf), and Size a
// number of bytes.
type place struct {
	Node       string `json:"node"`
	Filesystem string `json:"filesystem"`
	Size       int64  `json:"size"`
}

func (p place) String() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // impossible for two strings and a number
	}
	return string(text)
}

func readSnapshotClass(c *snapshotv1.VolumeSnapshotClass) SnapshotClass {
	return SnapshotClass{
		Name: c.Name, Default: c.Annotations[bootstrap.DefaultSnapshotClass] == "true", Retain: c.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain,
	}
}

func readSnapshot(s *snapshotv1.VolumeSnapshot) Snapshot {
	read := Snapshot{
		Key: s.Namespace + "/" + s.Name, UID: string(s.UID), Created: s.CreationTimestamp.Time, Class: value(s.Spec.VolumeSnapshotClassName),
		Content: value(s.Spec.Source.VolumeSnapshotContentName), Guarded: slices.Contains(s.Finalizers, Finalizer), Deleting: s.DeletionTimestamp != nil,
	}
	if name := value(s.Spec.Source.PersistentVolumeClaimName); name != "" {
		read.Claim = s.Namespace + "/" + name
	}
	if status := s.Status; status != nil {
		read.Bound = value(status.BoundVolumeSnapshotContentName)
		read.State = State{Ready: value(status.ReadyToUse), Problem: problemOf(status.Error)}
		if status.CreationTime != nil {
			read.State.Taken = status.CreationTime.Unix()
		}
		if status.RestoreSize != nil {
			read.State.Size = status.RestoreSize.Value()
		}
	}
	return read
}

// readContent converts a VolumeSnapshotContent to the input of Step. If the name of its snapshot or
// of its source volume is invalid, the result has no Handle and no Node.
func readContent(c *snapshotv1.VolumeSnapshotContent) Content {
	ref := c.Spec.VolumeSnapshotRef
	read := Content{
		Name: c.Name, Snapshot: string(ref.UID), Key: ref.Namespace + "/" + ref.Name,
		Of: value(c.Spec.Source.VolumeHandle), Handle: value(c.Spec.Source.SnapshotHandle),
		Retain: c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain, Deleting: c.DeletionTimestamp != nil,
	}
	if read.Handle == "" {
		read.Handle = snapshotName(read.Snapshot)
	}
	var where place
	if text := c.Annotations[promiseAnnotation]; text != "" && json.Unmarshal([]byte(text), &where) == nil {
		read.Node, read.Filesystem, read.Size = where.Node, where.Filesystem, where.Size
	}
	if !volumeName.MatchString(read.Handle) || !isSnapshot(read.Handle) || read.Of != "" && !volumeName.MatchString(read.Of) {
		read.Handle, read.Node = "", ""
	}
	if status := c.Status; status != nil {
		read.State = State{
			Taken: value(status.CreationTime) / int64(time.Second), Ready: value(status.ReadyToUse),
			Size: value(status.RestoreSize), Problem: problemOf(status.Error),
		}
	}
	return read
}

// value returns the value of a pointer, or the zero value if the pointer is nil.
func value[T any](p *T) T {
	if p == nil {
		var none T
		return none
	}
	return *p
}

func problemOf(e *snapshotv1.VolumeSnapshotError) string {
	if e == nil {
		return ""
	}
	return value(e.Message)
}

// sourceOf returns the source that a claim names for its volume. If this driver cannot use the
// source, the second result is the reason.
func sourceOf(c *corev1.PersistentVolumeClaim) (Source, string) {
	ref := c.Spec.DataSourceRef
	if ref == nil && c.Spec.DataSource != nil {
		ref = &corev1.TypedObjectReference{APIGroup: c.Spec.DataSource.APIGroup, Kind: c.Spec.DataSource.Kind, Name: c.Spec.DataSource.Name}
	}
	switch {
	case ref == nil:
		return Source{}, ""
	case value(ref.Namespace) != "" && *ref.Namespace != c.Namespace:
		return Source{}, "the source of a local volume must be in its claim's namespace: dataSourceRef must not name another namespace"
	case value(ref.APIGroup) == snapshotv1.GroupName && ref.Kind == "VolumeSnapshot":
		return Source{Snapshot: c.Namespace + "/" + ref.Name}, ""
	case value(ref.APIGroup) == "" && ref.Kind == "PersistentVolumeClaim":
		return Source{Claim: c.Namespace + "/" + ref.Name}, ""
	}
	return Source{}, fmt.Sprintf("the source of a local volume must be a VolumeSnapshot or a PersistentVolumeClaim, not a %s", ref.Kind)
}

// writeContent returns the VolumeSnapshotContent for a snapshot.
func writeContent(o CreateContent, s *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshotContent {
	policy := snapshotv1.VolumeSnapshotContentDelete
	if o.Retain {
		policy = snapshotv1.VolumeSnapshotContentRetain
	}
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Finalizers: []string{Finalizer},
			Annotations: map[string]string{promiseAnnotation: place{o.Hostname, o.Filesystem, o.Size}.String()}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Kind: "VolumeSnapshot", APIVersion: snapshotv1.SchemeGroupVersion.String(),
				Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion},
			DeletionPolicy: policy, Driver: Driver, VolumeSnapshotClassName: &o.Class,
			Source:           snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &o.Of},
			SourceVolumeMode: new(corev1.PersistentVolumeFilesystem),
		},
	}
}

// contentStatus and snapshotStatus return patches of the status of a content and of a snapshot. A
// patch removes the fields that have no value in s.
func contentStatus(handle string, s State) map[string]any {
	status := map[string]any{"snapshotHandle": nil, "creationTime": nil, "restoreSize": nil, "readyToUse": s.Ready, "error": failure(s.Problem)}
	if s.Taken != 0 || s.Ready {
		status["snapshotHandle"] = handle
	}
	if s.Taken != 0 {
		status["creationTime"] = s.Taken * int64(time.Second)
	}
	if s.Size != 0 {
		status["restoreSize"] = s.Size
	}
	return map[string]any{"status": status}
}

func snapshotStatus(bound string, s State) map[string]any {
	status := map[string]any{"boundVolumeSnapshotContentName": nil, "creationTime": nil, "restoreSize": nil, "readyToUse": s.Ready, "error": failure(s.Problem)}
	if bound != "" {
		status["boundVolumeSnapshotContentName"] = bound
	}
	if s.Taken != 0 {
		status["creationTime"] = time.Unix(s.Taken, 0).UTC().Format(time.RFC3339)
	}
	if s.Size != 0 {
		status["restoreSize"] = quantity(s.Size)
	}
	return map[string]any{"status": status}
}

func failure(why string) any {
	if why == "" {
		return nil
	}
	return map[string]any{"time": metav1.Now(), "message": why}
}

// doSnapshot performs a change of snapshots, in the same way as do performs other changes.
func (c *controller) doSnapshot(ctx context.Context, all objects, op Op) error {
	api := c.snapshots.SnapshotV1()
	patchSnapshot := func(key string, change map[string]any, subresource ...string) error {
		s := all.snapshots[key]
		patch, err := component.MergePatch(s, change)
		if err == nil {
			_, err = api.VolumeSnapshots(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresource...)
		}
		return ignoreNotFound(err)
	}
	patchContent := func(name string, change map[string]any, subresource ...string) error {
		patch, err := component.MergePatch(all.contents[name], change)
		if err == nil {
			_, err = api.VolumeSnapshotContents().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, subresource...)
		}
		return ignoreNotFound(err)
	}
	switch o := op.(type) {
	case GuardSnapshot:
		change := map[string]any{"metadata": map[string]any{"finalizers": append(slices.Clone(all.snapshots[o.Snapshot].Finalizers), Finalizer)}}
		if o.Class != "" {
			change["spec"] = map[string]any{"volumeSnapshotClassName": o.Class}
		}
		return patchSnapshot(o.Snapshot, change)
	case FreeSnapshot:
		return patchSnapshot(o.Snapshot, withoutFinalizer(all.snapshots[o.Snapshot]))
	case SetSnapshot:
		return patchSnapshot(o.Snapshot, snapshotStatus(o.Bound, o.State), "status")
	case CreateContent:
		c.promised[promise{content: true, name: o.Name}] = ""
		_, err := api.VolumeSnapshotContents().Create(ctx, writeContent(o, all.snapshots[o.Snapshot]), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	case BindContent:
		content := all.contents[o.Name]
		return patchContent(o.Name, map[string]any{
			"metadata": map[string]any{
				"finalizers":  append(slices.Clone(content.Finalizers), Finalizer),
				"annotations": map[string]any{promiseAnnotation: place{o.Hostname, o.Filesystem, o.Size}.String()},
			},
			"spec": map[string]any{"volumeSnapshotRef": map[string]any{"uid": all.snapshots[o.Snapshot].UID}},
		})
	case SetContent:
		return patchContent(o.Name, contentStatus(readContent(all.contents[o.Name]).Handle, o.State), "status")
	case DeleteContent:
		content := all.contents[o.Name]
		this := &metav1.Preconditions{UID: &content.UID, ResourceVersion: &content.ResourceVersion}
		return ignoreNotFound(api.VolumeSnapshotContents().Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: this}))
	case FinishContent:
		return patchContent(o.Name, withoutFinalizer(all.contents[o.Name]))
	}
	return fmt.Errorf("%T: unknown change", op)
}

// withoutFinalizer returns a patch that removes the finalizer of this driver from an object.
func withoutFinalizer(object metav1.Object) map[string]any {
	left := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == Finalizer })
	return map[string]any{"metadata": map[string]any{"finalizers": left}}
}

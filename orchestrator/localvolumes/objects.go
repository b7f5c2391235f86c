package localvolumes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// These annotations of Kubernetes are defined in k8s.io/component-helpers/storage/volume.
const (
	selectedNode  = "volume.kubernetes.io/selected-node"
	provisionedBy = "pv.kubernetes.io/provisioned-by"
)

func readNode(object any) *Node {
	n, ok := object.(*corev1.Node)
	if !ok {
		return nil
	}
	hostname := n.Labels[corev1.LabelHostname]
	// The Node has no label yet, or its label is the name of another node. A kubelet can change the
	// labels of its own Node, so such a label is not trusted.
	if hostname != n.Name {
		return nil
	}
	return &Node{
		Name: n.Name, Hostname: hostname, Report: parseReport(n.Annotations[ReportAnnotation]),
		Obsolete: parseObsolete(n.Annotations[ObsoleteAnnotation]), Copies: parseCopies(n.Annotations[CopiesAnnotation]),
	}
}

func sameNode(a, b Node) bool {
	x, y := a.Report, b.Report
	return a.Hostname == b.Hostname && slices.Equal(a.Obsolete, b.Obsolete) && slices.Equal(a.Copies, b.Copies) &&
		x.Problem == y.Problem && x.Filesystem == y.Filesystem && x.Size == y.Size && x.Copying == y.Copying && maps.Equal(x.Volumes, y.Volumes) &&
		maps.Equal(x.Created, y.Created) && maps.Equal(x.Waits, y.Waits) && slices.Equal(x.Removed, y.Removed)
}

func readClass(c *storagev1.StorageClass) StorageClass {
	return StorageClass{Name: c.Name, Pool: c.Parameters[parameterPool], Immediate: c.VolumeBindingMode == nil || *c.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer}
}

func readVolume(v *corev1.PersistentVolume) Volume {
	read := Volume{
		Name: v.Name, Filesystem: v.Spec.CSI.VolumeAttributes[attributeFilesystem], Size: v.Spec.Capacity.Storage().Value(),
		Source: v.Annotations[sourceAnnotation],
		Node:   placeOf(affinity(v), v.Spec.CSI.VolumeAttributes[parameterPool]), Retain: v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain, Deleting: v.DeletionTimestamp != nil,
	}
	if v.Spec.ClaimRef != nil {
		read.ClaimUID = string(v.Spec.ClaimRef.UID)
	}
	switch v.Status.Phase {
	case corev1.VolumeReleased, corev1.VolumeFailed:
		read.Released = true
	// A user has removed the reference to the former claim, and a new claim can bind the volume.
	case corev1.VolumeAvailable:
		read.Released = read.Deleting
	}
	return read
}

// affinity returns the hostname of the node that has a volume, or "" if the volume names no single
// node.
func affinity(v *corev1.PersistentVolume) string {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

func readClaim(c *corev1.PersistentVolumeClaim) Claim {
	read := Claim{
		Key: c.Namespace + "/" + c.Name, UID: string(c.UID), Created: c.CreationTimestamp.Time,
		Node: c.Annotations[selectedNode], Volume: c.Spec.VolumeName,
		Size: c.Spec.Resources.Requests.Storage().Value(), Deleting: c.DeletionTimestamp != nil, Problem: problem(c),
	}
	read.Source, _ = sourceOf(c) // readClaim gets the error text from problem
	if c.Spec.StorageClassName != nil {
		read.Class = *c.Spec.StorageClassName
	}
	if class, there := c.Annotations[corev1.BetaStorageClassAnnotation]; there {
		read.Class = class
	}
	if c.Status.Phase == corev1.ClaimBound {
		read.Has = c.Status.Capacity.Storage().Value()
	}
	switch c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress,
		corev1.PersistentVolumeClaimNodeResizeInfeasible:
		read.Resizing = true
	}
	return read
}

// problem returns the reason why no local volume can serve a claim, or "" if a local volume can.
func problem(c *corev1.PersistentVolumeClaim) string {
	if c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		return "a local volume is a directory: volumeMode must be Filesystem"
	}
	for _, mode := range c.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return fmt.Sprintf("a local volume is on one node: the access mode must be ReadWriteOnce or ReadWriteOncePod, not %s", mode)
		}
	}
	if _, why := sourceOf(c); why != "" {
		return why
	}
	if c.Spec.Selector != nil {
		return "a local volume is created for its claim: it supports no selector"
	}
	return ""
}

func ownCapacity(c *storagev1.CSIStorageCapacity) bool {
	return strings.HasPrefix(c.Name, "orlop-local-")
}

func readCapacity(c *storagev1.CSIStorageCapacity) Capacity {
	read := Capacity{Name: c.Name, Class: c.StorageClassName}
	if c.NodeTopology != nil {
		read.Hostname = c.NodeTopology.MatchLabels[corev1.LabelHostname]
	}
	if c.Capacity != nil {
		read.Bytes = c.Capacity.Value()
	}
	return read
}

func writeCapacity(c Capacity) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Name: c.Name, Namespace: metav1.NamespaceSystem},
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: c.Hostname}},
		StorageClassName: c.Class,
		Capacity:         quantity(c.Bytes),
	}
}

func quantity(bytes int64) *resource.Quantity { return resource.NewQuantity(bytes, resource.BinarySI) }

// writeVolume returns the PersistentVolume for a claim of a class.
func writeVolume(o CreateVolume, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	hostname, pool := splitPlace(o.Hostname)
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Annotations: map[string]string{provisionedBy: Driver}, Finalizers: []string{Finalizer}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: *quantity(o.Size)},
			AccessModes:                   claim.Spec.AccessModes,
			StorageClassName:              class.Name,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			MountOptions:                  class.MountOptions,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: Driver, VolumeHandle: o.Name,
				VolumeAttributes: map[string]string{attributeFilesystem: o.Filesystem, attributeSize: strconv.FormatInt(o.Size, 10)},
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hostname}},
				},
			}}}},
		},
	}
	if pool != "" {
		v.Spec.CSI.VolumeAttributes[parameterPool] = pool
	}
	if o.Source != "" {
		v.Annotations[sourceAnnotation] = o.Source
		v.Spec.CSI.VolumeAttributes[attributeSource] = o.Source
	}
	if class.ReclaimPolicy != nil {
		v.Spec.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
	}
	return v
}

// do performs a change. It sends the versions of the objects on which the decision is based. If an
// object has another version now, the API server rejects the change with a conflict.
func (c *controller) do(ctx context.Context, all objects, op Op) error {
	volumes := c.client.CoreV1().PersistentVolumes()
	capacities := c.client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem)
	switch o := op.(type) {
	case CreateVolume:
		claim := all.claims[o.Claim]
		c.promised[promise{name: o.Name}] = ""
		_, err := volumes.Create(ctx, writeVolume(o, claim, all.classes[readClaim(claim).Class]), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		if err == nil {
			c.events.Eventf(claim, corev1.EventTypeNormal, "LocalVolumeMade", "volume %s is on %s", o.Name, o.Hostname)
		}
		return err
	case Reschedule:
		claim := all.claims[o.Claim]
		c.events.Event(claim, corev1.EventTypeWarning, "LocalVolumeElsewhere", o.Why)
		return c.patchClaim(ctx, claim, map[string]any{"metadata": map[string]any{"annotations": map[string]any{selectedNode: nil}}})
	case GrowVolume:
		v := all.volumes[o.Name]
		c.promised[promise{name: o.Name}] = v.ResourceVersion
		return c.patchVolume(ctx, v, map[string]any{"spec": map[string]any{"capacity": map[string]any{"storage": quantity(o.Size)}}})
	case GrowClaim:
		claim := all.claims[o.Claim]
		return c.patchClaim(ctx, claim, growing(claim, o.Size), "status")
	case DeleteVolume:
		v := all.volumes[o.Name]
		this := &metav1.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion}
		return ignoreNotFound(volumes.Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: this}))
	case Finish:
		v := all.volumes[o.Name]
		return c.patchVolume(ctx, v, withoutFinalizer(v))
	case Filled:
		return c.patchVolume(ctx, all.volumes[o.Name], map[string]any{"metadata": map[string]any{"annotations": map[string]any{sourceAnnotation: nil}}})
	case Destroy:
		return tellNode(ctx, c, o.Node, annotation(ObsoleteAnnotation, o.Pool), o.Names)
	case RequestCopies:
		return tellNode(ctx, c, o.Node, annotation(CopiesAnnotation, o.Pool), o.Copies)
	case CreateClass:
		_, err := c.client.StorageV1().StorageClasses().Create(ctx, writeClass(o), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the class is about to arrive in the cache, or it belongs to another driver
		}
		return err
	case SetCapacity:
		want := writeCapacity(o.Capacity)
		if o.New {
			_, err := capacities.Create(ctx, want, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // the object is about to arrive in the cache
			}
			return err
		}
		want.ResourceVersion = all.capacities[o.Name].ResourceVersion
		_, err := capacities.Update(ctx, want, metav1.UpdateOptions{})
		return ignoreNotFound(err)
	case DropCapacity:
		return ignoreNotFound(capacities.Delete(ctx, o.Name, metav1.DeleteOptions{}))
	}
	return c.doSnapshot(ctx, all, op)
}

// tellNode writes a list of requests as JSON into an annotation of a Node. It removes the
// annotation if the list is empty.
func tellNode[T any](ctx context.Context, c *controller, node, annotation string, all []T) error {
	value := any(nil)
	if len(all) > 0 {
		text, err := json.Marshal(all)
		if err != nil {
			return err
		}
		value = string(text)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotation: value}}})
	if err == nil {
		_, err = c.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return ignoreNotFound(err)
}

// growing returns a patch of the status of a claim. The new status requests from the kubelet that
// the node part raises the quota of the volume to size (KEP-1790).
func growing(claim *corev1.PersistentVolumeClaim, size int64) map[string]any {
	conditions := slices.DeleteFunc(slices.Clone(claim.Status.Conditions), func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
	})
	conditions = append(conditions, corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		Message: "the node raises the limit when a pod uses the volume",
	})
	return map[string]any{"status": map[string]any{
		"conditions":                conditions,
		"allocatedResources":        map[string]any{"storage": quantity(size)},
		"allocatedResourceStatuses": map[string]any{"storage": corev1.PersistentVolumeClaimNodeResizePending},
	}}
}

func (c *controller) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, change map[string]any, subresource ...string) error {
	patch, err := component.MergePatch(claim, change)
	if err == nil {
		claims := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
		_, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresource...)
	}
	return ignoreNotFound(err)
}

func (c *controller) patchVolume(ctx context.Context, v *corev1.PersistentVolume, change map[string]any) error {
	patch, err := component.MergePatch(v, change)
	if err == nil {
		_, err = c.client.CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil // the object was deleted meanwhile
	}
	return err
}

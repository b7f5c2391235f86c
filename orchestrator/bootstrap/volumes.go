package bootstrap

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// VolumeDriver is the CSI driver of local volumes (package localvolumes), and the provisioner
	// that a StorageClass names.
	VolumeDriver = "volumes.orlop.dev"
	// LocalClass is the StorageClass that the cluster has from the beginning.
	LocalClass = "orlop-local"
	// LocalVolumesAccount is the service account in kube-system by which local volumes are made and
	// ended.
	LocalVolumesAccount = "orlop-local-volumes"
)

// defaultClass marks the StorageClass of claims that name none.
const defaultClass = "storageclass.kubernetes.io/is-default-class"

// csiDriver says how the driver wants to be used: nothing is attached, the scheduler looks at what
// nodes have room for, and the kubelet gives files to a pod's fsGroup.
func csiDriver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: VolumeDriver},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: new(false), PodInfoOnMount: new(false), StorageCapacity: new(true),
			FSGroupPolicy:        new(storagev1.FileFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}
}

// localClass makes volumes where the first pod of a claim runs, and destroys them with the claim.
func localClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: LocalClass, Annotations: map[string]string{defaultClass: "true"}},
		Provisioner:          VolumeDriver,
		ReclaimPolicy:        new(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode:    new(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: new(true),
	}
}

// keptVolumes are both, each made where it is missing. What somebody has changed of them stays:
// that another class is the default, above all.
func keptVolumes(client kubernetes.Interface) []kept {
	return []kept{
		{driversResource, "", VolumeDriver, func(ctx context.Context) error {
			return ensureObject(ctx, client.StorageV1().CSIDrivers(), csiDriver(), func(*storagev1.CSIDriver) bool { return false })
		}},
		{classesResource, "", LocalClass, func(ctx context.Context) error {
			return ensureObject(ctx, client.StorageV1().StorageClasses(), localClass(), func(*storagev1.StorageClass) bool { return false })
		}},
	}
}

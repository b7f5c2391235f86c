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
	// in a StorageClass.
	VolumeDriver = "volumes.orlop.dev"
	// LocalClass is the StorageClass that every new cluster has.
	LocalClass = "orlop-local"
	// LocalVolumesAccount is the service account in kube-system that creates and deletes local
	// volumes.
	LocalVolumesAccount = "orlop-local-volumes"
)

// defaultClass marks the StorageClass of claims that name no class.
const defaultClass = "storageclass.kubernetes.io/is-default-class"

// csiDriver describes the driver: no volume needs to be attached, the scheduler checks the capacity
// of nodes, and the kubelet assigns the files of a volume to a pod's fsGroup.
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

// localClass is the default class.
func localClass() *storagev1.StorageClass {
	class := NewLocalClass(LocalClass)
	class.Annotations = map[string]string{defaultClass: "true"}
	return class
}

// NewLocalClass returns a class that creates a volume on the node of a claim's first pod, and
// deletes it with the claim.
func NewLocalClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: name},
		Provisioner:          VolumeDriver,
		ReclaimPolicy:        new(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode:    new(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: new(true),
	}
}

// managedVolumes are the driver and the class. Missing objects are created. Changes of a user stay,
// above all another default class.
func managedVolumes(client kubernetes.Interface) []managed {
	return []managed{
		{driversResource, "", VolumeDriver, func(ctx context.Context) error {
			return ensureObject(ctx, client.StorageV1().CSIDrivers(), csiDriver(), func(*storagev1.CSIDriver) bool { return false })
		}},
		{classesResource, "", LocalClass, func(ctx context.Context) error {
			return ensureObject(ctx, client.StorageV1().StorageClasses(), localClass(), func(*storagev1.StorageClass) bool { return false })
		}},
	}
}

// Package controlplane has the type of the kind OrlopControlPlane. It fulfills the part of the
// v1beta2 contract of Cluster API that is about control planes.
//
// +kubebuilder:object:generate=true
// +groupName=controlplane.cluster.x-k8s.io
// +versionName=v1alpha1
package controlplane

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of OrlopControlPlane.
var GroupVersion = schema.GroupVersion{Group: "controlplane.cluster.x-k8s.io", Version: "v1alpha1"}

// OrlopControlPlanes is the resource of OrlopControlPlane.
var OrlopControlPlanes = GroupVersion.WithResource("orlopcontrolplanes")

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &OrlopControlPlane{}, &OrlopControlPlaneList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// An OrlopControlPlane describes all control-plane machines of the cluster together. The system
// creates the object and writes its status. The desired versions are in the Machine objects.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=orlopcontrolplanes,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Machines",type=integer,JSONPath=".status.replicas"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyReplicas"
// +kubebuilder:printcolumn:name="Up-to-date",type=integer,JSONPath=".status.upToDateReplicas"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type OrlopControlPlane struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// status is the observed state. The controllers write it.
	// +optional
	Status OrlopControlPlaneStatus `json:"status,omitempty"`
}

// OrlopControlPlaneStatus is the observed state of the control-plane machines.
type OrlopControlPlaneStatus struct {
	// initialization is required by the contract of Cluster API.
	// +optional
	Initialization *Initialization `json:"initialization,omitempty"`
	// replicas is the number of control-plane machines.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// readyReplicas is the number of control-plane machines that are ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// upToDateReplicas is the number of control-plane machines that run the wanted release.
	// +optional
	UpToDateReplicas int32 `json:"upToDateReplicas,omitempty"`
	// versions are the versions of Kubernetes on the control-plane machines, the oldest first.
	// +optional
	// +listType=map
	// +listMapKey=version
	// +kubebuilder:validation:MaxItems=16
	Versions []Version `json:"versions,omitempty"`
	// observedGeneration is the newest generation of the object that the controllers have
	// processed.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions contains one condition, of type Available.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Initialization is required by the contract of Cluster API.
type Initialization struct {
	// controlPlaneInitialized is always true, because the API server runs before this object can
	// exist.
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"`
}

// Version is a version of Kubernetes, with the number of control-plane machines that run it.
type Version struct {
	// version is the version of Kubernetes, for example v1.37.2.
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`
	// replicas is the number of control-plane machines that run the version.
	Replicas int32 `json:"replicas"`
}

// OrlopControlPlaneList is a list of OrlopControlPlane objects.
//
// +kubebuilder:object:root=true
type OrlopControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OrlopControlPlane `json:"items"`
}

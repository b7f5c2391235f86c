package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A Component describes a component of the system or an add-on: the machines that run it, and its
// extension points. The object of an add-on is named addon.NAME. The controllers create the objects
// and write their status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=components,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Process",type=string,JSONPath=".status.process"
// +kubebuilder:printcolumn:name="Runs-on",type=string,JSONPath=".status.runsOn"
// +kubebuilder:printcolumn:name="Machines",type=integer,JSONPath=".status.machines"
// +kubebuilder:printcolumn:name="Ready-machines",type=integer,JSONPath=".status.readyMachines"
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=".status.active"
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=".status.version"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
type Component struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// status is the observed state. The controllers write it.
	// +optional
	Status ComponentStatus `json:"status,omitempty"`
}

// ComponentStatus is the observed state of a component.
type ComponentStatus struct {
	// process is the process that contains the component: api, controllers or node. For an add-on
	// it is addon.
	// +kubebuilder:validation:MaxLength=64
	Process string `json:"process,omitempty"`
	// runsOn says which machines run the component: ControlPlane, Workers or All. Leader means that
	// all control-plane machines run it and only one of them is active at a time. External means
	// that an add-on replaces the component (Cluster.spec.external).
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RunsOn string `json:"runsOn,omitempty"`
	// active is the name of the active machine of a component with runsOn Leader.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Active string `json:"active,omitempty"`
	// version is the version of the component on the control-plane machine whose controllers lead.
	// ClusterHealth shows the versions of all machines. The field is empty for an add-on.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version,omitempty"`
	// machines is the number of machines that have to run the component.
	// +optional
	Machines int32 `json:"machines,omitempty"`
	// readyMachines is the number of machines on which the component is ready.
	// +optional
	ReadyMachines int32 `json:"readyMachines,omitempty"`
	// notReady are the names of machines on which the component is not ready, at most 32.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=253
	NotReady []string `json:"notReady,omitempty"`
	// extensions are the plugins, webhooks and policies that are registered at the extension points
	// of the component. Plugins of the same kind are in the order in which the component calls
	// them. Webhooks and policies are in no particular order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Extensions []Extension `json:"extensions,omitempty"`
	// conditions has the type Ready. This condition is True if the component is ready on all
	// machines that have to run it. For runsOn Leader, only the active machine counts. For runsOn
	// External, the condition is always True.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// An Extension is a plugin, a webhook, a policy or an issuer that is registered at an extension
// point.
type Extension struct {
	// point is the extension point: admission, authentication, authorization or scheduling.
	// +kubebuilder:validation:MaxLength=64
	Point string `json:"point"`
	// name is the name of the plugin, the webhook, the policy or the issuer.
	// +kubebuilder:validation:MaxLength=512
	Name string `json:"name"`
	// source says where the extension is registered: BuiltIn, Configuration (the Cluster document),
	// or the kind of an object of Kubernetes.
	// +kubebuilder:validation:MaxLength=64
	Source string `json:"source"`
	// detail is a property that is important for requests, for example the failure policy.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Detail string `json:"detail,omitempty"`
}

// ComponentList is a list of Component objects.
//
// +kubebuilder:object:root=true
type ComponentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Component `json:"items"`
}

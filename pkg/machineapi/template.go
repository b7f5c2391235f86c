package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// An OrlopMachineTemplate describes the machines that a MachineDeployment takes from the inventory:
// a condition for the hardware, and a signed configuration. An operator creates the object.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=orlopmachinetemplates,shortName=omt,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Match",type=string,JSONPath=".spec.template.spec.match"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type OrlopMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the desired state.
	Spec OrlopMachineTemplateSpec `json:"spec"`
	// status is empty.
	// +optional
	Status OrlopMachineTemplateStatus `json:"status,omitempty"`
}

// OrlopMachineTemplateSpec is the desired state of a template.
type OrlopMachineTemplateSpec struct {
	// template describes the machines.
	Template OrlopMachineTemplateResource `json:"template"`
}

// OrlopMachineTemplateResource describes the machines.
type OrlopMachineTemplateResource struct {
	// spec describes the machines.
	Spec ClaimSpec `json:"spec"`
}

// ClaimSpec describes the machines that are taken. A change has an effect on later machines only.
type ClaimSpec struct {
	// match is an expression in CEL over the inventory of an OrlopHost, for example `host.cpus >=
	// 16 && host.memory >= 64 * GiB && host.labels["rack"] == "7"`. Without it, every approved
	// machine matches. A machine describes its hardware itself; the labels are the labels of its
	// OrlopHost.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Match string `json:"match,omitempty"`
	// documents is the configuration of a worker, without its name and without a secret. `orlopctl
	// nodes template` makes and signs the documents.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=24576
	Documents string `json:"documents"`
	// signature is the signature of an operator over the documents, with the certificate of the
	// operator. A machine accepts the documents of its own operator only.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Signature string `json:"signature"`
}

// OrlopMachineTemplateStatus is empty.
type OrlopMachineTemplateStatus struct{}

// OrlopMachineTemplateList is a list of OrlopMachineTemplate objects.
//
// +kubebuilder:object:root=true
type OrlopMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OrlopMachineTemplate `json:"items"`
}

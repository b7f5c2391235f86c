package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// An OrlopMachineTemplate describes the machines that a MachineDeployment claims from the
// inventory: a condition for their hardware, and a signed configuration. An operator creates the
// object.
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
	// spec is the description of the machines.
	Spec OrlopMachineTemplateSpec `json:"spec"`
	// status is empty.
	// +optional
	Status OrlopMachineTemplateStatus `json:"status,omitempty"`
}

// OrlopMachineTemplateSpec is the description of the machines.
type OrlopMachineTemplateSpec struct {
	// template contains the description, in the structure that Cluster API requires.
	Template OrlopMachineTemplateResource `json:"template"`
}

// OrlopMachineTemplateResource contains the description, in the structure that Cluster API
// requires.
type OrlopMachineTemplateResource struct {
	// spec describes the machines that are claimed.
	Spec ClaimSpec `json:"spec"`
}

// ClaimSpec describes the machines that are claimed. A change affects only machines that are
// claimed later.
type ClaimSpec struct {
	// match is an expression in CEL over the inventory of an OrlopHost, for example `host.cpus >=
	// 16 && host.memory >= 64 * GiB && host.labels["rack"] == "7"`. If it is empty, every approved
	// machine matches. The labels are those of the OrlopHost object. The other values are from the
	// inventory that the machine itself has sent.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Match string `json:"match,omitempty"`
	// documents is the configuration of a worker, without the name of the machine and without
	// secrets. `orlopctl nodes template` creates and signs the documents.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=24576
	Documents string `json:"documents"`
	// signature is the signature of an operator over the documents, with the certificate of the
	// operator. A machine accepts only documents that are signed by an operator that it trusts.
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

package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// An OrlopApprovalRule approves machines that wait for a configuration by their serial numbers,
// with the signature of an operator. An operator creates the object. A serial number proves
// nothing, so each listed machine is approved once.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=orlopapprovalrules,shortName=oar,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].reason`
// +kubebuilder:printcolumn:name="Machines",type=integer,JSONPath=".status.machines"
// +kubebuilder:printcolumn:name="Maximum",type=integer,JSONPath=".status.maximum"
// +kubebuilder:printcolumn:name="Approved",type=integer,JSONPath=".status.approved"
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=".status.expires"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type OrlopApprovalRule struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the signed rule.
	Spec OrlopApprovalRuleSpec `json:"spec"`
	// status is the observed state.
	// +optional
	Status OrlopApprovalRuleStatus `json:"status,omitempty"`
}

// OrlopApprovalRuleSpec is a signed rule.
type OrlopApprovalRuleSpec struct {
	// rule is the text of the rule in YAML: the machines by serial number or UUID, an expression in
	// CEL over the inventory, the maximal number of approvals, and the end of the validity.
	// `orlopctl nodes rule` makes and signs the text.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=24576
	Rule string `json:"rule"`
	// signature is the signature of an operator over the text, with the certificate of the
	// operator.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Signature string `json:"signature"`
}

// OrlopApprovalRuleStatus is the observed state of a rule.
type OrlopApprovalRuleStatus struct {
	// machines is the number of listed machines.
	// +optional
	Machines int32 `json:"machines,omitempty"`
	// maximum is the maximal number of approvals.
	// +optional
	Maximum int32 `json:"maximum,omitempty"`
	// expires is the end of the validity.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`
	// approved is the number of machines that the rule has approved: those in approvals, and those
	// that wait for a claim.
	// +optional
	Approved int32 `json:"approved"`
	// approvals are the approvals that have had an effect: the control plane has offered a
	// configuration to the machine.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Approvals []RuleApproval `json:"approvals,omitempty"`
	// conditions are Valid.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RuleApproval is an approval that has had an effect.
type RuleApproval struct {
	// serial is the serial number that the rule lists.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Serial string `json:"serial,omitempty"`
	// uuid is the UUID that the rule lists.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UUID string `json:"uuid,omitempty"`
	// fingerprint is the fingerprint of the key of the machine that took the approval.
	// +kubebuilder:validation:MaxLength=128
	Fingerprint string `json:"fingerprint"`
	// time is the time of the approval.
	Time metav1.Time `json:"time"`
}

// OrlopApprovalRuleList is a list of OrlopApprovalRule objects.
//
// +kubebuilder:object:root=true
type OrlopApprovalRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OrlopApprovalRule `json:"items"`
}

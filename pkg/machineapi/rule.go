package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// An OrlopApprovalRule approves waiting machines by their serial numbers or UUIDs. An operator
// signs the rule and creates the object. Another machine can send a listed serial number as its
// own. Therefore a rule approves only one machine for each entry of its list.
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
	// status is the observed state. The controllers write it.
	// +optional
	Status OrlopApprovalRuleStatus `json:"status,omitempty"`
}

// OrlopApprovalRuleSpec is a rule with the signature of an operator.
type OrlopApprovalRuleSpec struct {
	// rule is the text of the rule in YAML. It contains the serial numbers or UUIDs of machines, an
	// expression in CEL over the inventory, the maximum number of approvals, and the time at which
	// the rule expires. `orlopctl nodes rule` creates and signs the text.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=24576
	Rule string `json:"rule"`
	// signature is the signature of an operator over the text of the rule, with the certificate of
	// the operator.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Signature string `json:"signature"`
}

// OrlopApprovalRuleStatus is the observed state of a rule.
type OrlopApprovalRuleStatus struct {
	// machines is the number of machines that the rule lists.
	// +optional
	Machines int32 `json:"machines,omitempty"`
	// maximum is the maximum number of approvals.
	// +optional
	Maximum int32 `json:"maximum,omitempty"`
	// expires is the time at which the rule expires.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`
	// approved is the number of machines that the rule has approved. It includes the machines in
	// approvals, and the machines that still wait for a claim by a MachineSet.
	// +optional
	Approved int32 `json:"approved"`
	// approvals are the approvals that have had an effect: the control plane has offered a
	// configuration to the machine.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Approvals []RuleApproval `json:"approvals,omitempty"`
	// conditions has the type Valid.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RuleApproval is an approval of a machine by the rule.
type RuleApproval struct {
	// serial is the serial number that the rule lists.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Serial string `json:"serial,omitempty"`
	// uuid is the UUID that the rule lists.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UUID string `json:"uuid,omitempty"`
	// fingerprint is the fingerprint of the key of the approved machine.
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

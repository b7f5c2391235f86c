package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A ClusterHealth describes the health of the whole cluster. It has the name of the cluster. The
// controllers create the object and write its status; `orlopctl health --cluster` shows the same
// while Kubernetes is down.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=clusterhealths,singular=clusterhealth,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Machines",type=integer,JSONPath=".status.machines"
// +kubebuilder:printcolumn:name="Healthy",type=integer,JSONPath=".status.healthyMachines"
// +kubebuilder:printcolumn:name="Problems",type=integer,JSONPath=".status.problemCount"
// +kubebuilder:printcolumn:name="Etcd-leader",type=string,JSONPath=".status.etcd.leader"
// +kubebuilder:printcolumn:name="Observed",type=date,JSONPath=".status.observed"
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
type ClusterHealth struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// status is the observed state. The controllers write it.
	// +optional
	Status ClusterHealthStatus `json:"status,omitempty"`
}

// ClusterHealthStatus is the observed health of a cluster.
type ClusterHealthStatus struct {
	// machine is the name of the control-plane machine that has asked the others.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`
	// observed is the time of an observation with this state. It is written with each change, and
	// every five minutes.
	// +optional
	Observed *metav1.Time `json:"observed,omitempty"`
	// machines is the number of machines.
	// +optional
	Machines int32 `json:"machines,omitempty"`
	// healthyMachines is the number of machines that have answered and report no failed check.
	// +optional
	HealthyMachines int32 `json:"healthyMachines,omitempty"`
	// versions are the running versions with the numbers of their machines, the most frequent
	// first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Versions []VersionCount `json:"versions,omitempty"`
	// etcd is the state of etcd.
	// +optional
	Etcd *EtcdHealth `json:"etcd,omitempty"`
	// certificateExpiry is the first expiry of a certificate of a machine.
	// +optional
	CertificateExpiry *metav1.Time `json:"certificateExpiry,omitempty"`
	// addons is a line about the add-ons.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Addons string `json:"addons,omitempty"`
	// rollout is a line about the rollout of releases.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Rollout string `json:"rollout,omitempty"`
	// problemCount is the number of problems.
	// +optional
	ProblemCount int32 `json:"problemCount,omitempty"`
	// problems are the first problems, beginning with the problems of the whole cluster.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Problems []HealthFinding `json:"problems,omitempty"`
	// notes are states that end by themselves or that an operator has chosen, for example a version
	// on trial. They are no problems.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Notes []HealthFinding `json:"notes,omitempty"`
	// conditions: Ready is true if there is no problem. The others are true if there is no problem
	// of their subject. They are unknown if no control-plane machine has asked the machines lately.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VersionCount is a version and the number of machines that run it.
type VersionCount struct {
	// version is the version of Orlop OS.
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`
	// kubernetes is the version of Kubernetes.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Kubernetes string `json:"kubernetes,omitempty"`
	// machines is the number of machines.
	Machines int32 `json:"machines"`
}

// EtcdHealth is the state of etcd, as the machine that has asked the others sees it.
type EtcdHealth struct {
	// leader is the name of the leader; empty if there is none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Leader string `json:"leader,omitempty"`
	// voters is the number of voting members.
	// +optional
	Voters int32 `json:"voters,omitempty"`
	// down is the number of voting members that do not answer.
	// +optional
	Down int32 `json:"down,omitempty"`
	// problem is the reason for which the members are unknown.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Problem string `json:"problem,omitempty"`
}

// HealthFinding is a problem or a note.
type HealthFinding struct {
	// machine is the name or the address of the machine; empty for the whole cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`
	// subject is the area of the finding: reachability, health, skew, etcd, certificate, upgrade,
	// document or trial.
	// +kubebuilder:validation:MaxLength=64
	Subject string `json:"subject"`
	// reason is a line.
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// remedy is a line.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Remedy string `json:"remedy,omitempty"`
}

// ClusterHealthList is a list of ClusterHealth objects.
//
// +kubebuilder:object:root=true
type ClusterHealthList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterHealth `json:"items"`
}

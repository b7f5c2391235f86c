package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A ClusterHealth describes the health of the whole cluster, and has the name of the cluster. The
// controllers create the object and write its status. While Kubernetes is down, `orlopctl health
// --cluster` shows the same information.
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
	// machine is the name of the control-plane machine that has asked all machines for their
	// health.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`
	// observed is the time at which status.machine asked the machines. The controllers write the
	// status when it changes, and at least every five minutes.
	// +optional
	Observed *metav1.Time `json:"observed,omitempty"`
	// machines is the number of machines.
	// +optional
	Machines int32 `json:"machines,omitempty"`
	// healthyMachines is the number of machines that have answered and have no failed check.
	// +optional
	HealthyMachines int32 `json:"healthyMachines,omitempty"`
	// versions are the versions that machines run, with the number of machines of each. The most
	// frequent version is first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Versions []VersionCount `json:"versions,omitempty"`
	// etcd is the state of etcd.
	// +optional
	Etcd *EtcdHealth `json:"etcd,omitempty"`
	// certificateExpiry is the earliest time at which a certificate of a machine expires.
	// +optional
	CertificateExpiry *metav1.Time `json:"certificateExpiry,omitempty"`
	// addons describes the state of the add-ons in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Addons string `json:"addons,omitempty"`
	// rollout describes the rollout of releases in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Rollout string `json:"rollout,omitempty"`
	// problemCount is the number of problems, including problems that do not fit into the list.
	// +optional
	ProblemCount int32 `json:"problemCount,omitempty"`
	// problems are the problems, at most 32. The problems of the whole cluster are first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Problems []HealthFinding `json:"problems,omitempty"`
	// notes are states that are no problems, for example a version on trial. Such a state ends
	// without an action of an operator, or an operator has chosen it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Notes []HealthFinding `json:"notes,omitempty"`
	// conditions has the type Ready, and a type for each subject. Ready is True if the cluster has
	// no problem. The condition of a subject is True if there is no problem with this subject. All
	// conditions are Unknown if no control-plane machine has asked the machines for their health
	// during the last three minutes.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VersionCount is a version with the number of machines that run it.
type VersionCount struct {
	// version is the version of Orlop OS.
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`
	// kubernetes is the version of Kubernetes.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Kubernetes string `json:"kubernetes,omitempty"`
	// machines is the number of machines that run the version.
	Machines int32 `json:"machines"`
}

// EtcdHealth is the state of etcd, as seen from status.machine.
type EtcdHealth struct {
	// leader is the name of the leader. It is empty if there is no leader.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Leader string `json:"leader,omitempty"`
	// voters is the number of voting etcd members.
	// +optional
	Voters int32 `json:"voters,omitempty"`
	// down is the number of voting etcd members that do not answer.
	// +optional
	Down int32 `json:"down,omitempty"`
	// problem says why the list of etcd members could not be read.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Problem string `json:"problem,omitempty"`
}

// HealthFinding is a problem or a note.
type HealthFinding struct {
	// machine is the name or the address of the machine. It is empty if the finding concerns the
	// whole cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`
	// subject is the area of the finding: reachability, health, skew, etcd, certificate, upgrade,
	// document or trial.
	// +kubebuilder:validation:MaxLength=64
	Subject string `json:"subject"`
	// reason says in one line what was found.
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// remedy says in one line what an operator can do.
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

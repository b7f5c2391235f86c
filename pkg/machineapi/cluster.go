package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// An OrlopCluster describes the releases that the machines of the cluster may run, and the rules of
// a rollout. The system creates the object; an operator changes releases and rollout.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=orlopclusters,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Machines",type=integer,JSONPath=".status.machines"
// +kubebuilder:printcolumn:name="Up-to-date",type=integer,JSONPath=".status.upToDate"
// +kubebuilder:printcolumn:name="Paused",type=boolean,JSONPath=".spec.rollout.paused"
// +kubebuilder:printcolumn:name="Rollout",type=string,JSONPath=`.status.conditions[?(@.type=="RollingOut")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type OrlopCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the desired state.
	// +optional
	Spec OrlopClusterSpec `json:"spec,omitempty"`
	// status is the observed state. The controllers write it.
	// +optional
	Status OrlopClusterStatus `json:"status,omitempty"`
}

// OrlopClusterSpec is the desired state of a cluster.
type OrlopClusterSpec struct {
	// controlPlaneEndpoint is the address of the Kubernetes API of the cluster.
	// +optional
	ControlPlaneEndpoint *APIEndpoint `json:"controlPlaneEndpoint,omitempty"`
	// releases is the catalogue of the releases of Orlop OS. A change of Machine.spec.version
	// selects the newest release with this version of Kubernetes.
	// +optional
	// +listType=map
	// +listMapKey=version
	// +kubebuilder:validation:MaxItems=64
	Releases []Release `json:"releases,omitempty"`
	// rollout are the rules by which machines get another release.
	// +optional
	Rollout Rollout `json:"rollout,omitempty"`
}

// APIEndpoint is the address of an API server.
type APIEndpoint struct {
	// host is a DNS name or an IP address.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Host string `json:"host"`
	// port is a TCP port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// A Release is a version of Orlop OS with the Kubernetes that it contains.
type Release struct {
	// version is the version of Orlop OS, for example 1.2.0.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`
	Version string `json:"version"`
	// kubernetes is the version of Kubernetes in this release, for example v1.37.2.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`
	Kubernetes string `json:"kubernetes"`
	// image is the OCI reference of the signed bundle, with its digest. Without it, machines fetch
	// the release from a machine that runs it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^@[:space:]]+@sha256:[0-9a-f]{64}$`
	Image string `json:"image,omitempty"`
}

// Rollout are the rules by which machines get another release. Control planes are first, in turn,
// and the leader of etcd is the last of them; workers follow. A machine that rolled back
// halts the rollout until another release is wanted.
type Rollout struct {
	// paused stops the start of further updates. Updates that run continue.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// maxUnavailable is the number of workers that may be away at the same time, for any reason.
	// The default is 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxUnavailable *int32 `json:"maxUnavailable,omitempty"`
	// canary is the group of machines that are updated before the others of their role.
	// +optional
	Canary *Canary `json:"canary,omitempty"`
	// windows are the times at which updates may start. Without windows, they may start at any
	// time.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Windows []Window `json:"windows,omitempty"`
	// gates have to pass before the update of each machine starts.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Gates []Gate `json:"gates,omitempty"`
}

// Canary is the group of machines that are updated before the others of their role.
type Canary struct {
	// selector selects Machine objects by their labels.
	Selector metav1.LabelSelector `json:"selector"`
	// soakSeconds is how long all machines of the group must be up to date and healthy before the
	// others of their role start. The default is 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	SoakSeconds int32 `json:"soakSeconds,omitempty"`
}

// Window is a time of a week in UTC.
type Window struct {
	// days are the days on which the window starts. Without days, it starts on every day.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=7
	Days []Day `json:"days,omitempty"`
	// start is the time of the start, in UTC, for example 22:30.
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	// +kubebuilder:validation:MaxLength=5
	Start string `json:"start"`
	// minutes is the length of the window, which may end on the next day.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1440
	Minutes int32 `json:"minutes"`
}

// Day is a day of the week.
//
// +kubebuilder:validation:Enum=Monday;Tuesday;Wednesday;Thursday;Friday;Saturday;Sunday
type Day string

// A Gate is a condition of Machine objects, or a Job.
//
// +kubebuilder:validation:XValidation:rule="has(self.conditionType) != has(self.cronJob)",message="exactly one of conditionType and cronJob is needed"
type Gate struct {
	// conditionType is the type of a condition of Machine objects that another program sets. The
	// gate passes if every updated machine has the condition with the status True.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	ConditionType string `json:"conditionType,omitempty"`
	// cronJob is the name of a CronJob in the namespace of the OrlopCluster, the template of a Job.
	// Its own schedule can be suspended. Before each machine the system creates a Job from it. The
	// gate passes if the Job completes. After a failed Job the rollout waits until the Job is
	// deleted; then the gate is tried again.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	CronJob string `json:"cronJob,omitempty"`
}

// OrlopClusterStatus is the observed state of a cluster.
type OrlopClusterStatus struct {
	// initialization is the part of the contract of Cluster API.
	// +optional
	Initialization *Initialization `json:"initialization,omitempty"`
	// machines is the number of machines.
	// +optional
	Machines int32 `json:"machines,omitempty"`
	// upToDate is the number of machines that run the wanted release.
	// +optional
	UpToDate int32 `json:"upToDate,omitempty"`
	// observedGeneration is the newest generation that the controllers have seen.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: RollingOut is true while machines wait for their release; its reason and message
	// name the cause.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Initialization is the part of the contract of Cluster API.
type Initialization struct {
	// provisioned is true: the machines exist before their objects.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// OrlopClusterList is a list of OrlopCluster objects.
//
// +kubebuilder:object:root=true
type OrlopClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OrlopCluster `json:"items"`
}

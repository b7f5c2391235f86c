package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// An OrlopCluster describes the releases that the machines of the cluster may run, and the rules
// for the rollout of a release. The system creates the object. An operator changes spec.releases
// and spec.rollout.
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
	// releases is the catalogue of the releases of Orlop OS. If an operator changes
	// Machine.spec.version, the machine gets the newest release with this version of Kubernetes.
	// +optional
	// +listType=map
	// +listMapKey=version
	// +kubebuilder:validation:MaxItems=64
	Releases []Release `json:"releases,omitempty"`
	// rollout contains the rules by which machines change to another release.
	// +optional
	Rollout Rollout `json:"rollout,omitempty"`
}

// APIEndpoint is the address of the Kubernetes API.
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

// A Release is a version of Orlop OS, with the version of Kubernetes that it contains.
type Release struct {
	// version is the version of Orlop OS, for example 1.2.0.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`
	Version string `json:"version"`
	// kubernetes is the version of Kubernetes in this release, for example v1.37.2.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`
	Kubernetes string `json:"kubernetes"`
	// image is the OCI reference of the signed bundle, with its digest. If it is empty, machines
	// fetch the release from a machine that runs it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^@[:space:]]+@sha256:[0-9a-f]{64}$`
	Image string `json:"image,omitempty"`
}

// Rollout contains the rules by which machines change to another release. The control-plane
// machines change first, one after another, and the leader of etcd is the last of them. The workers
// follow. If a machine rolls back, the rollout halts until another release is wanted.
type Rollout struct {
	// paused prevents the start of further updates. Updates that have started continue.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// maxUnavailable is the number of workers that may be unavailable at the same time, for any
	// reason. The default is 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxUnavailable *int32 `json:"maxUnavailable,omitempty"`
	// canary selects the machines that are updated before all other machines with their role.
	// +optional
	Canary *Canary `json:"canary,omitempty"`
	// windows are the times at which updates may start. Without windows, they may start at any
	// time.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Windows []Window `json:"windows,omitempty"`
	// gates are conditions that must be met before the update of each machine starts.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Gates []Gate `json:"gates,omitempty"`
}

// Canary selects the machines that are updated before all other machines with their role.
type Canary struct {
	// selector selects Machine objects by their labels.
	Selector metav1.LabelSelector `json:"selector"`
	// soakSeconds is how long all selected machines must be up to date and healthy before the other
	// machines with their role are updated. The default is 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	SoakSeconds int32 `json:"soakSeconds,omitempty"`
}

// Window is a period that begins on certain days of the week, in UTC.
type Window struct {
	// days are the days on which the window starts. If the list is empty, the window starts on
	// every day.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=7
	Days []Day `json:"days,omitempty"`
	// start is the time of the day at which the window starts, in UTC, for example 22:30.
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	// +kubebuilder:validation:MaxLength=5
	Start string `json:"start"`
	// minutes is the length of the window in minutes. A window may end on the next day.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1440
	Minutes int32 `json:"minutes"`
}

// Day is a day of the week.
//
// +kubebuilder:validation:Enum=Monday;Tuesday;Wednesday;Thursday;Friday;Saturday;Sunday
type Day string

// A Gate is a condition that must be met before the update of a machine: either a condition of
// Machine objects, or a Job that completes.
//
// +kubebuilder:validation:XValidation:rule="has(self.conditionType) != has(self.cronJob)",message="exactly one of conditionType and cronJob is needed"
type Gate struct {
	// conditionType is the type of a condition of Machine objects. A program outside the system
	// sets the condition. The gate passes if the condition is True for every machine that runs its
	// wanted release.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	ConditionType string `json:"conditionType,omitempty"`
	// cronJob is the name of a CronJob in the namespace of the OrlopCluster. Before the update of
	// each machine, the system creates a Job from the template in the CronJob. The gate passes if
	// the Job completes. If the Job fails, the rollout waits until an operator deletes the Job, and
	// then the system creates another Job. The CronJob itself can be suspended, because the system
	// does not use its schedule.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	CronJob string `json:"cronJob,omitempty"`
}

// OrlopClusterStatus is the observed state of a cluster.
type OrlopClusterStatus struct {
	// initialization is required by the contract of Cluster API.
	// +optional
	Initialization *Initialization `json:"initialization,omitempty"`
	// machines is the number of machines.
	// +optional
	Machines int32 `json:"machines,omitempty"`
	// upToDate is the number of machines that run the wanted release.
	// +optional
	UpToDate int32 `json:"upToDate,omitempty"`
	// observedGeneration is the newest generation of the object that the controllers have
	// processed.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions has the type RollingOut. This condition is True while machines wait for their
	// wanted release. Its reason and message say what the rollout waits for.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Initialization is required by the contract of Cluster API.
type Initialization struct {
	// provisioned is always true, because the machines exist before their objects.
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

package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// An OrlopMachine describes a machine of the cluster. The machine, its Node and its Machine have
// the same name as this object. The system creates the object. An operator changes spec.release
// and spec.power.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=orlopmachines,shortName=om,scope=Namespaced,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=".spec.role"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=".status.release.version",description="Version of Orlop OS"
// +kubebuilder:printcolumn:name="Kubernetes",type=string,JSONPath=".status.release.kubernetes"
// +kubebuilder:printcolumn:name="Permitted",type=string,JSONPath=".spec.permit.release.version",description="Version that the machine may install now"
// +kubebuilder:printcolumn:name="Updating",type=string,JSONPath=`.status.conditions[?(@.type=="Updating")].reason`
// +kubebuilder:printcolumn:name="Failed",type=string,JSONPath=".status.failed.release.version",description="Version that the machine rolled back"
// +kubebuilder:printcolumn:name="Repair",type=string,JSONPath=".spec.repair.step",description="Last step of a repair"
// +kubebuilder:printcolumn:name="Fence",type=string,JSONPath=".spec.fence.phase",description="Phase of a fence by the power switch"
// +kubebuilder:printcolumn:name="Provider-ID",type=string,JSONPath=".spec.providerID",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of a machine has at most 63 characters"
type OrlopMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the desired state.
	Spec OrlopMachineSpec `json:"spec"`
	// status is the observed state. The machine writes it.
	// +optional
	Status OrlopMachineStatus `json:"status,omitempty"`
}

// OrlopMachineSpec is the desired state of a machine.
//
// +kubebuilder:validation:XValidation:rule="has(self.claim) == has(oldSelf.claim)",message="claim cannot be added or removed"
// +kubebuilder:validation:XValidation:rule="!has(self.claim) || self.role == 'worker'",message="only a worker comes from the inventory"
type OrlopMachineSpec struct {
	// providerID identifies the machine: orlop:///<cluster>/<machine>. It cannot be changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed"
	ProviderID string `json:"providerID"`
	// role is the role of the machine in the cluster.
	// +kubebuilder:validation:Enum=controlplane;worker
	Role string `json:"role"`
	// release is the release that an operator wants on this machine. It takes precedence over
	// Machine.spec.version. If neither is set, the machine keeps its release.
	// +optional
	Release *ReleaseReference `json:"release,omitempty"`
	// permit is the decision of the rollout, which the controllers write. A machine installs a
	// release only if its permit names the release and has not expired.
	// +optional
	Permit *Permit `json:"permit,omitempty"`
	// claim is set if a MachineSet claimed this machine when it was a waiting machine (OrlopHost).
	// The controllers write the field when they create the object. If the Machine of a claimed
	// machine is deleted, the machine is removed from the cluster.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed"
	Claim *MachineClaim `json:"claim,omitempty"`
	// repair is the order of a MachineHealthCheck for an unhealthy machine. The controllers write
	// it. The step begins only within four minutes after the order. After a repair by hand, the
	// operator removes the field, so that the next repair begins with the first step.
	// +optional
	Repair *RepairOrder `json:"repair,omitempty"`
	// power is the access of the controllers to the power switch of the machine. An operator writes
	// it. If the field is set, a MachineHealthCheck with a maximum of unhealthy machines
	// (triggerIf) power-cycles the machine as the last step of a repair. It also fences the machine
	// when its Node does not report: the controllers switch the machine off before they release its
	// pods and volumes.
	// +optional
	Power *MachinePower `json:"power,omitempty"`
	// fence is the state of a fence. The controllers write it. An operator removes it to end a
	// fence by hand.
	// +optional
	Fence *MachineFence `json:"fence,omitempty"`
}

// MachinePower is the access to the power switch of a machine.
type MachinePower struct {
	// secret is the name of a Secret of the namespace kube-system, of type orlop.dev/power-switch,
	// with the access to the management controller (BMC) of the machine by Redfish. Its keys are
	// either machine (the name of this machine) or uuid (the UUID of this machine, as the
	// controller and the firmware show it; an OrlopHost needs it), endpoint (https://HOST),
	// username, password, either fingerprint (sha256:…, of the key of the controller) or ca.crt,
	// and optionally system (the ID of the system, if the controller has several).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Secret string `json:"secret"`
	// afterFencing is On or Off: whether the controllers switch the machine on again after its pods
	// and volumes are released. The default is On.
	// +optional
	// +kubebuilder:validation:Enum=On;Off
	AfterFencing string `json:"afterFencing,omitempty"`
}

// MachineFence is the state of a fence.
type MachineFence struct {
	// phase is SwitchOff, Release (of the pods and volumes), SwitchOn or Return (until the Node is
	// Ready). It is Failed if the power switch did not report the machine as off in time, and
	// Refuted if the machine ran although the power switch reported it as off.
	// +kubebuilder:validation:MaxLength=64
	Phase string `json:"phase"`
	// since is the begin of the phase.
	Since metav1.Time `json:"since"`
	// bootID is the boot ID of the Node before the fence. The fence ends when the Node is Ready
	// with another boot ID.
	// +kubebuilder:validation:MaxLength=64
	BootID string `json:"bootID"`
	// stayOff is the reason why the controllers do not switch the machine on again.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	StayOff string `json:"stayOff,omitempty"`
}

// MachineClaim says by which template and which approval a waiting machine became a machine of the
// cluster.
type MachineClaim struct {
	// fingerprint is the fingerprint of the key of the machine.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Fingerprint string `json:"fingerprint"`
	// template is the name of the OrlopMachineTemplate.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Template string `json:"template"`
	// rule is the name of the OrlopApprovalRule that has approved the machine. It is empty if an
	// operator has approved the fingerprint.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Rule string `json:"rule,omitempty"`
}

// A ReleaseReference names a release of Orlop OS.
type ReleaseReference struct {
	// version is the version of Orlop OS, for example 1.2.0.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`
	Version string `json:"version"`
	// image is the OCI reference of the signed bundle, with its digest. If it is empty, the machine
	// fetches the release from a machine that runs it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^@[:space:]]+@sha256:[0-9a-f]{64}$`
	Image string `json:"image,omitempty"`
}

// A Permit allows a machine to install a release.
type Permit struct {
	// release is the release that the machine may install now.
	Release ReleaseReference `json:"release"`
	// peers are the addresses of machines that run the release. The machine fetches the release
	// from them if release.image is empty.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	Peers []string `json:"peers,omitempty"`
	// expires is the time at which the permit ends. An update that has started before this time
	// continues.
	Expires metav1.Time `json:"expires"`
}

// A RepairOrder orders a step of the repair of a machine.
type RepairOrder struct {
	// step is RestartServices (restart the container runtime and the node), Reboot, OtherSlot
	// (boot the version in the other slot), or PowerCycle (off and on by the power switch). The
	// cluster can refuse Reboot and OtherSlot, like the same command of an operator. The
	// controllers perform PowerCycle, and the machine performs the other steps.
	// +kubebuilder:validation:MaxLength=64
	Step string `json:"step"`
	// attempt is the number of the attempt of this step, beginning with 1.
	// +kubebuilder:validation:Minimum=1
	Attempt int32 `json:"attempt"`
	// given is the time of the order.
	Given metav1.Time `json:"given"`
	// phase is the state of the step PowerCycle: SwitchOff, SwitchOn or Done. The controllers write
	// it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Phase string `json:"phase,omitempty"`
}

// RepairStatus is the answer of a machine to a RepairOrder.
type RepairStatus struct {
	// step is the step of the order.
	// +kubebuilder:validation:MaxLength=64
	Step string `json:"step"`
	// given is the time of the order.
	Given metav1.Time `json:"given"`
	// phase is Started or Refused.
	// +kubebuilder:validation:Enum=Started;Refused
	Phase string `json:"phase"`
	// message is the reason of a refusal. It is empty in the phase Started.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// OrlopMachineStatus is the observed state of a machine.
type OrlopMachineStatus struct {
	// initialization is required by the contract of Cluster API.
	// +optional
	Initialization *Initialization `json:"initialization,omitempty"`
	// addresses are the addresses of the machine.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Addresses []Address `json:"addresses,omitempty"`
	// release is the release that the machine runs.
	// +optional
	Release *RunningRelease `json:"release,omitempty"`
	// failed is the last release that the machine has rolled back. The machine removes the field
	// when it commits another release, or when its wanted release changes.
	// +optional
	Failed *FailedRelease `json:"failed,omitempty"`
	// repair is the answer of the machine to spec.repair.
	// +optional
	Repair *RepairStatus `json:"repair,omitempty"`
	// drain describes the last drain since the boot of the machine: the eviction of its pods before
	// the machine is away. The machine removes the field at the next boot.
	// +optional
	Drain *DrainStatus `json:"drain,omitempty"`
	// etcdLeader is true if the etcd member on this machine is the leader of etcd.
	// +optional
	EtcdLeader bool `json:"etcdLeader,omitempty"`
	// observedGeneration is the newest generation of the object that the machine has processed.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions has the types Ready, UpToDate, Updating and RolledBack.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// An Address is an address of a machine.
type Address struct {
	// type is Hostname, InternalIP, ExternalIP, InternalDNS or ExternalDNS.
	// +kubebuilder:validation:Enum=Hostname;ExternalIP;InternalIP;ExternalDNS;InternalDNS
	Type string `json:"type"`
	// address is the address.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Address string `json:"address"`
}

// RunningRelease is the release that a machine runs.
type RunningRelease struct {
	// version is the version of Orlop OS.
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`
	// kubernetes is the version of Kubernetes.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Kubernetes string `json:"kubernetes,omitempty"`
	// onTrial is true from the first boot of the release until its commit.
	// +optional
	OnTrial bool `json:"onTrial,omitempty"`
	// since is the time at which the machine committed the release.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// DrainStatus is the state of a drain: the eviction of the pods of a machine.
type DrainStatus struct {
	// operation is the operation that needs the drain: upgrade, rollback, reboot, shutdown or
	// reset.
	// +kubebuilder:validation:MaxLength=64
	Operation string `json:"operation"`
	// policy says what happens if a PodDisruptionBudget forbids an eviction. timeout and respect
	// wait until the deadline; then the operation proceeds (timeout) or is refused (respect). force
	// deletes the pod at once.
	// +kubebuilder:validation:MaxLength=64
	Policy string `json:"policy"`
	// phase is running, drained, given up, undone, incomplete or refused. Incomplete means that
	// pods are left and the operation proceeds. After the phases given up, undone and refused, the
	// operation does not take place: a client has ended the drain, the operation failed after the
	// drain, or pods are left.
	// +kubebuilder:validation:MaxLength=64
	Phase string `json:"phase"`
	// started is the time at which the drain started.
	// +optional
	Started *metav1.Time `json:"started,omitempty"`
	// deadline is the time at which the drain ends at the latest.
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
	// evicted is the number of pods that the machine has evicted.
	// +optional
	Evicted int32 `json:"evicted,omitempty"`
	// left is the number of pods that the machine still has to evict.
	// +optional
	Left int32 `json:"left,omitempty"`
	// blocking are the pods that block the drain, at most eight.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Blocking []BlockingPod `json:"blocking,omitempty"`
	// problem says why the last round of evictions was incomplete.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Problem string `json:"problem,omitempty"`
}

// BlockingPod is a pod that blocks a drain.
type BlockingPod struct {
	// pod is the namespace and the name of the pod: namespace/name.
	// +kubebuilder:validation:MaxLength=320
	Pod string `json:"pod"`
	// budget is the name of the PodDisruptionBudget that forbids the eviction. It is in the
	// namespace of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Budget string `json:"budget,omitempty"`
	// message is the reason that the API server returned for the refused eviction.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// FailedRelease is a release that a machine has rolled back.
type FailedRelease struct {
	// release is the release that the machine has rolled back.
	Release ReleaseReference `json:"release"`
	// reason says why the machine has rolled the release back.
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// log contains the last lines of the log of the release.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Log string `json:"log,omitempty"`
	// time is the time of the rollback.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}

// OrlopMachineList is a list of OrlopMachine objects.
//
// +kubebuilder:object:root=true
type OrlopMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OrlopMachine `json:"items"`
}

package machineapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// An OrlopHost is a machine of the inventory: it waits for a configuration, or it is off until a
// MachineSet needs it. Its name is the first 32 digits of the fingerprint of the machine. The
// controllers create the object when the machine sends its inventory. They delete it after the
// machine has joined the cluster, or if a machine without an approval sends no inventory for ten
// minutes. An object with a power switch stays in both cases, until the machine reports with
// another key. An operator changes spec.approval and spec.power.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=orlophosts,shortName=oh,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=".status.address"
// +kubebuilder:printcolumn:name="Serial",type=string,JSONPath=".status.inventory.serial"
// +kubebuilder:printcolumn:name="Product",type=string,JSONPath=".status.inventory.product"
// +kubebuilder:printcolumn:name="CPUs",type=integer,JSONPath=".status.inventory.cpus"
// +kubebuilder:printcolumn:name="Memory-MiB",type=integer,JSONPath=".status.inventory.memoryMiB"
// +kubebuilder:printcolumn:name="Waiting",type=string,JSONPath=`.status.conditions[?(@.type=="Waiting")].status`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Waiting")].reason`
// +kubebuilder:printcolumn:name="Approved",type=string,JSONPath=`.status.conditions[?(@.type=="Approved")].status`
// +kubebuilder:printcolumn:name="Rule",type=string,JSONPath=".spec.approval.rule"
// +kubebuilder:printcolumn:name="Machine",type=string,JSONPath=".spec.claim.machine"
// +kubebuilder:printcolumn:name="Fingerprint",type=string,JSONPath=".spec.fingerprint",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type OrlopHost struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec identifies the machine, and contains the decisions about it.
	Spec OrlopHostSpec `json:"spec"`
	// status is the description that the machine sends about itself. It can be false, because the
	// machine has proved only spec.fingerprint.
	// +optional
	Status OrlopHostStatus `json:"status,omitempty"`
}

// Approved reports whether an operator or a rule has approved the machine: the fingerprint in
// spec.approval is spec.fingerprint. The schema rejects every other fingerprint in spec.approval,
// too.
func (h *OrlopHost) Approved() bool {
	return h.Spec.Approval != nil && h.Spec.Approval.Fingerprint == h.Spec.Fingerprint
}

// OrlopHostSpec identifies a machine, and contains the decisions about it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.approval) || self.approval.fingerprint == self.fingerprint",message="approval.fingerprint is not the fingerprint of this machine: compare it with the console of the machine"
// +kubebuilder:validation:XValidation:rule="!has(self.claim) || has(self.approval)",message="a machine without an approval cannot be claimed, and a claimed machine keeps its approval"
type OrlopHostSpec struct {
	// fingerprint is the fingerprint of the key of the machine. The console of the machine shows
	// it. The machine has proved that it has the key.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed"
	Fingerprint string `json:"fingerprint"`
	// approval accepts the machine for the cluster: a MachineSet may claim the machine. An operator
	// writes it. For a machine that matches an OrlopApprovalRule, the controllers write it.
	// +optional
	Approval *HostApproval `json:"approval,omitempty"`
	// claim assigns the machine to a MachineSet. The controllers write it.
	// +optional
	Claim *HostClaim `json:"claim,omitempty"`
	// power is the access of the controllers to the power switch of the machine. An operator writes
	// it. The key uuid of its Secret has to be the UUID of the machine. With it, a machine that a
	// MachineSet returns is switched off, and is switched on when a MachineSet needs it. While the
	// machine is a worker, its OrlopMachine has the same power switch. After an erasure the machine
	// has another key, and the controllers copy the field to the new OrlopHost with the same UUID.
	// +optional
	Power *MachinePower `json:"power,omitempty"`
	// standby is the state of the power of a machine that is no worker. The controllers write it.
	// Without it, they do not operate the power switch. An operator removes it to end that.
	// +optional
	Standby *HostStandby `json:"standby,omitempty"`
}

// HostStandby is the state of the power of a machine that is no worker.
type HostStandby struct {
	// phase is SwitchOff, Unerased (the machine has left the cluster and keeps its data), Off,
	// SwitchOn, Boot, Reported, or Surplus (no MachineSet needs the machine any more).
	// +kubebuilder:validation:MaxLength=64
	Phase string `json:"phase"`
	// since is the begin of the phase. In phases SwitchOn and Boot it is the time of the order to
	// switch on.
	Since metav1.Time `json:"since"`
	// machineSet is the name of the MachineSet for which the machine is switched on.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	MachineSet string `json:"machineSet,omitempty"`
	// erasure is NotConfirmed if the machine may still have the data and keys of a member: it was
	// lost before its removal, or the controllers have switched it off before it powered off by
	// itself. Such a machine erases itself at its next boot.
	// +optional
	// +kubebuilder:validation:Enum=NotConfirmed
	Erasure string `json:"erasure,omitempty"`
}

// HostClaim is the claim of a MachineSet on a machine.
type HostClaim struct {
	// machineSet is the name of the MachineSet.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	MachineSet string `json:"machineSet"`
	// template is the name of the OrlopMachineTemplate.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Template string `json:"template"`
	// machine is the name that the machine will have: the prefix of the template and the first
	// digits of the fingerprint. The Machine object has the same name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Machine string `json:"machine"`
	// onRemoval is the value of Machine.spec.join.onRemoval in the template: Wipe if the machine
	// erases itself after it has left the cluster. Only then the controllers operate its power
	// switch after the claim.
	// +optional
	// +kubebuilder:validation:Enum=Keep;Wipe
	OnRemoval string `json:"onRemoval,omitempty"`
}

// HostApproval is the approval of a machine, by an operator or by a rule.
type HostApproval struct {
	// fingerprint is the complete fingerprint that the console of the machine shows.
	// +kubebuilder:validation:MaxLength=128
	Fingerprint string `json:"fingerprint"`
	// rule is the name of the OrlopApprovalRule that approves the machine. It is empty if an
	// operator has approved the fingerprint.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Rule string `json:"rule,omitempty"`
}

// OrlopHostStatus is the observed state of a waiting machine.
type OrlopHostStatus struct {
	// address is the source address of the last message of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Address string `json:"address,omitempty"`
	// lastSeen is the time of a recent message of the machine. The controllers write it at most
	// once in two minutes, so the machine may have sent later messages.
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// inventory is the hardware, as the machine describes it.
	// +optional
	Inventory HostInventory `json:"inventory,omitempty"`
	// conditions has the types Waiting and Approved.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HostInventory is the hardware of a machine, as the machine describes it.
type HostInventory struct {
	// serial is the serial number in the firmware.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Serial string `json:"serial,omitempty"`
	// uuid is the UUID in the firmware.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UUID string `json:"uuid,omitempty"`
	// vendor is the manufacturer of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Vendor string `json:"vendor,omitempty"`
	// product is the name of the product.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Product string `json:"product,omitempty"`
	// firmware is the version of the firmware.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Firmware string `json:"firmware,omitempty"`
	// secureBoot is the mode of Secure Boot: enabled, disabled, setup or unsupported.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SecureBoot string `json:"secureBoot,omitempty"`
	// controller is the address of the Redfish service of the management controller, as the
	// firmware states it. Often only the machine itself can reach this address.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Controller string `json:"controller,omitempty"`
	// release is the version of Orlop OS that the machine runs.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Release string `json:"release,omitempty"`
	// medium is the boot medium. It is empty if the system is installed on a disk.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Medium string `json:"medium,omitempty"`
	// cpuModel is the model of the processors.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	CPUModel string `json:"cpuModel,omitempty"`
	// cpus is the number of logical processors.
	// +optional
	CPUs int32 `json:"cpus,omitempty"`
	// memoryMiB is the size of the memory in MiB.
	// +optional
	MemoryMiB int64 `json:"memoryMiB,omitempty"`
	// disks are the disks.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Disks []HostDisk `json:"disks,omitempty"`
	// nics are the physical network interfaces.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	NICs []HostNIC `json:"nics,omitempty"`
}

// HostDisk is a disk.
type HostDisk struct {
	// name is the name of the device.
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`
	// sizeMiB is the size in MiB.
	// +optional
	SizeMiB int64 `json:"sizeMiB,omitempty"`
	// model is the model.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Model string `json:"model,omitempty"`
	// serial is the serial number.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Serial string `json:"serial,omitempty"`
	// rotational is true for a disk with moving parts.
	// +optional
	Rotational bool `json:"rotational,omitempty"`
}

// HostNIC is a physical network interface.
type HostNIC struct {
	// name is the name of the interface.
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name"`
	// mac is the MAC address.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac,omitempty"`
	// driver is the name of the kernel driver.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Driver string `json:"driver,omitempty"`
	// speedMbps is the speed in Mbit/s.
	// +optional
	SpeedMbps int32 `json:"speedMbps,omitempty"`
	// carrier is true if the interface has a carrier, usually because a cable is connected.
	// +optional
	Carrier bool `json:"carrier,omitempty"`
	// addresses are the IP addresses of the interface.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	Addresses []string `json:"addresses,omitempty"`
	// neighbors are the devices that announce themselves on the interface by LLDP.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Neighbors []HostNeighbor `json:"neighbors,omitempty"`
}

// HostNeighbor is a device that announces itself by LLDP.
type HostNeighbor struct {
	// system is the name of the device in its LLDP messages.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	System string `json:"system,omitempty"`
	// port is the port of the device to which the interface is connected.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Port string `json:"port,omitempty"`
}

// OrlopHostList is a list of OrlopHost objects.
//
// +kubebuilder:object:root=true
type OrlopHostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OrlopHost `json:"items"`
}

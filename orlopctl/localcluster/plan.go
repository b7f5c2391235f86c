package localcluster

import (
	"cmp"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/vm"
)

const (
	// firstMachine is the name of the first machine of a local cluster.
	firstMachine = "cp1"
	// maxControlPlanes bounds the number of control-plane machines. etcd recommends at most seven
	// members.
	maxControlPlanes = 7
	// maxWorkers bounds the number of workers, because each worker needs its whole memory on this
	// computer.
	maxWorkers = 16
	// minMemory is the smallest memory in MiB with which a machine starts its services.
	minMemory = 512
	// minDiskGiB is the smallest disk in GiB: the system and the smallest DATA
	// (layout.MinimumData).
	minDiskGiB = 3
)

// options are the flags of `cluster create`.
type options struct {
	image         string // the disk image
	operator      string // directory of the operator CA in the image
	memory, cpus  int
	workerMemory  int // in MiB; 0: the value of memory
	diskGiB       int64
	capture       string // file for all packets; empty for no capture
	dilation      int    // factor by which time passes more slowly in the machines
	patchFile     string // patch for the configurations of the control-plane machines
	controlPlanes int
	workers       int
	redfish       bool // serve the power switches with Redfish
}

// register adds the flags to a command.
func (o *options) register(f *pflag.FlagSet) {
	f.StringVar(&o.image, "image", filepath.Join("build", "qemu"), "directory with disk.raw, or a disk image")
	f.StringVar(&o.operator, "operator", "", "directory of the operator CA in the image (default: operator beside the image's directory)")
	f.IntVar(&o.memory, "memory", 2048, "memory of each machine in MiB")
	f.IntVar(&o.workerMemory, "worker-memory", 0, "memory of each worker in MiB (default: the value of --memory)")
	f.StringVar(&o.patchFile, "config-patch", "", "file with a patch for the configurations of the control-plane machines, in the format of orlopctl patch-config; workers get only its part about the cluster")
	f.IntVar(&o.cpus, "cpus", 2, "processors of each machine")
	f.StringVar(&o.capture, "capture", "", "file (pcap) for all packets of the machines' network, until the machines end")
	f.IntVar(&o.dilation, "time-dilation", 1, "let time pass more slowly in the machines, by this factor (1 to 8); use it if several emulated machines on few processors run into their time limits; printed times are then times of the machines")
	f.IntVar(&o.controlPlanes, "control-planes", 1, "number of control-plane machines; three tolerate one failure, five tolerate two")
	f.IntVar(&o.workers, "workers", 0, "number of workers")
	f.BoolVar(&o.redfish, "redfish", false, "serve the power switches of the machines by Redfish on 127.0.0.1, like the management controllers of real machines")
	f.Int64Var(&o.diskGiB, "disk", 8, "size of the disk of each machine in GiB; the file is sparse")

	flags.Limit(f, "memory", &o.memory, minMemory, 0)
	flags.Limit(f, "worker-memory", &o.workerMemory, minMemory, 0)
	flags.Positive(f, "cpus", &o.cpus)
	flags.Limit(f, "time-dilation", &o.dilation, 1, vm.MaxDilation)
	flags.Limit(f, "control-planes", &o.controlPlanes, 1, maxControlPlanes)
	flags.Limit(f, "workers", &o.workers, 0, maxWorkers)
	flags.Limit(f, "disk", &o.diskGiB, minDiskGiB, 0)
}

// redfishSpec returns the Redfish service of the machines. It returns nil without --redfish.
func (o *options) redfishSpec() *vm.RedfishSpec {
	if !o.redfish {
		return nil
	}
	return &vm.RedfishSpec{}
}

// redfishAccess describes how a client reaches a Redfish service.
func redfishAccess(s *vm.RedfishStatus) string {
	return s.URL + ", user " + s.User + ", password in " + s.PasswordFile + ", key " + s.Fingerprint
}

// machineNames returns the names of the control-plane machines, and then the names of the workers.
func (o *options) machineNames() []string {
	var names []string
	for n := range o.controlPlanes {
		names = append(names, controlPlaneName(n+1))
	}
	for n := range o.workers {
		names = append(names, workerName(n+1))
	}
	return names
}

// machineSpecs returns the specifications of the virtual machines, in the order of machineNames.
func (o *options) machineSpecs() []vm.MachineSpec {
	var machines []vm.MachineSpec
	for i, name := range o.machineNames() {
		memory := o.memory
		if i >= o.controlPlanes {
			memory = cmp.Or(o.workerMemory, o.memory)
		}
		machines = append(machines, vm.MachineSpec{Name: name, MemoryMiB: memory, CPUs: o.cpus, Disks: vm.BootDisk(o.image, o.diskGiB<<10), Watchdog: true})
	}
	return machines
}

// forwards returns the port forwards to the machines. kubernetes and management are the ports on
// this computer that lead to the first machine. For each other machine, a forward uses any free
// port.
func (o *options) forwards(kubernetes, management uint16) []vm.ForwardSpec {
	out := []vm.ForwardSpec{
		{Machine: firstMachine, Port: paths.PortKubernetes, HostPort: kubernetes},
		{Machine: firstMachine, Port: paths.PortApid, HostPort: management},
	}
	for i, name := range o.machineNames()[1:] {
		out = append(out, vm.ForwardSpec{Machine: name, Port: paths.PortApid})
		if i+1 < o.controlPlanes {
			out = append(out, vm.ForwardSpec{Machine: name, Port: paths.PortKubernetes})
		}
	}
	return out
}

// controlPlaneName returns the name of the n-th control-plane machine. n starts at 1.
func controlPlaneName(n int) string { return "cp" + strconv.Itoa(n) }

// workerName returns the name of the n-th worker. n starts at 1.
func workerName(n int) string { return "w" + strconv.Itoa(n) }

// contextOf returns the name of the context for a machine of a local cluster.
func contextOf(cluster, machine string) string {
	if machine == firstMachine {
		return cluster
	}
	return cluster + "-" + machine
}

// clusterContexts returns all names that a context of a local cluster can have.
func clusterContexts(name string) []string {
	var all []string
	for n := range maxControlPlanes {
		all = append(all, contextOf(name, controlPlaneName(n+1)))
	}
	for n := range maxWorkers {
		all = append(all, contextOf(name, workerName(n+1)))
	}
	return all
}

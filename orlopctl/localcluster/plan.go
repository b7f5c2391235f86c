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
	// maxControlPlanes bounds a local cluster. etcd itself advises seven members at most, and each
	// member is a machine on this computer.
	maxControlPlanes = 7
	// maxWorkers bounds a local cluster. Each worker is a machine with all its memory on this
	// computer.
	maxWorkers = 16
	// minMemory is the memory in MiB below which no machine starts its services.
	minMemory = 512
	// minDiskGiB is the smallest disk for the system and the smallest DATA
	// (layout.MinimumData).
	minDiskGiB = 3
)

// options are the flags of `cluster create`.
type options struct {
	image         string // the disk image
	operator      string // directory of the operator CA in the image
	memory, cpus  int
	workerMemory  int // 0: the same as the other machines
	diskGiB       int64
	capture       string // file for all packets; empty: no capture
	dilation      int    // factor by which time passes more slowly in the machines
	patchFile     string // patch for the configurations of the control-plane machines
	controlPlanes int
	workers       int
	redfish       bool // serve the power switches by Redfish
}

// register adds the flags to a command.
func (o *options) register(f *pflag.FlagSet) {
	f.StringVar(&o.image, "image", filepath.Join("build", "qemu"), "directory with disk.raw, or a disk image")
	f.StringVar(&o.operator, "operator", "", "directory of the operator CA in the image (default: operator beside the image's directory)")
	f.IntVar(&o.memory, "memory", 2048, "memory of the machine in MiB")
	f.IntVar(&o.workerMemory, "worker-memory", 0, "memory of each worker in MiB (default: as the others)")
	f.StringVar(&o.patchFile, "config-patch", "", "file with a patch for the control-plane machines' configurations, as for `patch-config`; workers get its part about the cluster")
	f.IntVar(&o.cpus, "cpus", 2, "processors of the machine")
	f.StringVar(&o.capture, "capture", "", "file (pcap) to write every packet of the machines' network to, for as long as they run")
	f.IntVar(&o.dilation, "time-dilation", 1, "have time pass so many times more slowly for the machines (1 to 8): several emulated machines on few processors wait for each other in vain otherwise; times that are printed are the machines' then")
	f.IntVar(&o.controlPlanes, "control-planes", 1, "number of control-plane machines; three tolerate one failure, five tolerate two")
	f.IntVar(&o.workers, "workers", 0, "further machines, which join as workers")
	f.BoolVar(&o.redfish, "redfish", false, "serve the power switches of the machines by Redfish on 127.0.0.1, like the management controllers of real machines")
	f.Int64Var(&o.diskGiB, "disk", 8, "size of its disk in GiB; the file is sparse")

	flags.Limit(f, "memory", &o.memory, minMemory, 0)
	flags.Limit(f, "worker-memory", &o.workerMemory, minMemory, 0)
	flags.Positive(f, "cpus", &o.cpus)
	flags.Limit(f, "time-dilation", &o.dilation, 1, vm.MaxDilation)
	flags.Limit(f, "control-planes", &o.controlPlanes, 1, maxControlPlanes)
	flags.Limit(f, "workers", &o.workers, 0, maxWorkers)
	flags.Limit(f, "disk", &o.diskGiB, minDiskGiB, 0)
}

// redfishSpec returns the Redfish service of the machines; nil without one.
func (o *options) redfishSpec() *vm.RedfishSpec {
	if !o.redfish {
		return nil
	}
	return &vm.RedfishSpec{}
}

// redfishAccess describes the access to a Redfish service.
func redfishAccess(s *vm.RedfishStatus) string {
	return s.URL + ", user " + s.User + ", password in " + s.PasswordFile + ", key " + s.Fingerprint
}

// machineNames returns the names of the machines: the control-plane machines, then the workers.
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

// machineSpecs returns the virtual machines.
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

// forwards returns the port forwards to the machines. The ports are those of the first machine on
// this computer; the other machines get any free ports.
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

// controlPlaneName returns the name of the n-th control-plane machine of a local cluster; n starts
// at 1.
func controlPlaneName(n int) string { return "cp" + strconv.Itoa(n) }

// workerName returns the name of the n-th worker of a local cluster; n starts at 1.
func workerName(n int) string { return "w" + strconv.Itoa(n) }

// contextOf returns the name of the context for a machine of a local cluster.
func contextOf(cluster, machine string) string {
	if machine == firstMachine {
		return cluster
	}
	return cluster + "-" + machine
}

// clusterContexts returns the names that contexts of a local cluster can have.
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

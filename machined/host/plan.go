package host

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/kernel/sysctl"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Config is the host part of the configuration. The zero Config is a machine without a
// configuration: Plan then sets everything but reservations.
type Config struct {
	// bytes reserved for the system; Plan uses at most half of the machine's memory
	ReservedMemory int64
	Sysctls        map[string]string // the operator's kernel parameters, by dotted name
	Modules        []string          // the operator's kernel modules
	Pods           bool              // pods will run on this machine
	ServiceProxy   bool              // the built-in service proxy (kube-proxy) will run
	// PreviousSysctls are the values of kernel parameters from before this package first set them,
	// by dotted name (Kernel.PreviousSysctls). Parameters that the configuration no longer contains
	// return to these values.
	PreviousSysctls map[string]string
	// 32 lower-case hexadecimal digits; empty if there is none yet. See MachineID
	MachineID string
}

// Facts are the properties of the machine that Plan needs. They do not change while machined runs.
type Facts struct {
	Memory int64 // bytes (MemTotal)
	CPUs   int   // online
	EFI    bool  // booted by UEFI firmware
}

// Want is the desired state of the host.
type Want struct {
	Modules   []Module
	Mounts    []mount.Mount
	Shared    bool // mounts propagate to and from containers (kubelet: mountPropagation)
	Sysctls   []Sysctl
	Rlimits   []Rlimit
	Groups    []Group // parents first
	Home      string  // the control group of machined
	MachineID string
}

// Module is a kernel module to load.
type Module struct {
	Name string
	// Optional modules are skipped if the image does not contain them.
	Optional bool
}

// Sysctl is a kernel parameter.
type Sysctl struct {
	Name  string // dotted, as in sysctl(8)
	Value string
	// Optional parameters are skipped if the kernel does not have them.
	Optional bool
	// Restore marks a parameter that returns to its value from before it was configured.
	Restore bool
}

// Rlimit is a resource limit of machined, which all its child processes inherit.
type Rlimit struct {
	Name       string // "core", as in /proc/PID/limits
	Soft, Hard uint64 // Unlimited: no limit
}

// Unlimited is RLIM_INFINITY (getrlimit(2)).
const Unlimited = ^uint64(0)

// Group is a control group.
type Group struct {
	Path  string
	Files map[string]string // values by name of the file
	// controllers delegated to the child groups; the kernel may lack some of them
	Delegated []string
}

// controllers are the controllers that the kubelet requires, and io, from which the kubelet reads a
// part of its statistics.
var controllers = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}

// machinedMemory is the memory reserved for PID 1, in bytes: 25 MiB, which is its limit for
// anonymous memory, and a part of its code.
const machinedMemory = 40 << 20

// Plan returns the desired state of the host.
func Plan(c Config, f Facts) Want {
	return Want{
		Modules:   planModules(c),
		Mounts:    planMounts(f),
		Shared:    true,
		Sysctls:   planSysctls(c, f),
		Rlimits:   planRlimits(),
		Groups:    planGroups(c, f),
		Home:      cgroup.Machined,
		MachineID: c.MachineID,
	}
}

// planModules lists the modules that the kernel usually loads on demand with modprobe(8). The image
// has no modprobe, so that no pod can make the kernel load code (see kernel.modprobe in
// pkg/kernel/sysctl). Modules for devices are not in this list. The modules for pods, the service
// proxy and the CNI plugins are loaded only if pods will run. They have most of the code and take
// most of the loading time (0.5 s under emulation), and the management API starts only afterwards.
func planModules(c Config) []Module {
	var list []Module
	add := func(optional bool, names ...string) {
		for _, name := range names {
			if !slices.ContainsFunc(list, func(m Module) bool { return m.Name == name }) {
				list = append(list, Module{name, optional})
			}
		}
	}
	if c.Pods {
		// For containerd's snapshots (overlay), the pod bridge (bridge), its links (veth), and the
		// service proxy's rules, which bridged packets pass through (br_netfilter).
		add(false, "overlay", "bridge", "veth", "br_netfilter")
		// For kube-proxy in nftables mode, and for the masquerading and the port mapping of the CNI
		// plugins.
		add(false, "nf_tables", "nft_chain_nat", "nft_ct", "nft_nat", "nft_masq", "nft_fib_ipv4", "nft_fib_ipv6",
			"nft_reject_ipv4", "nft_reject_ipv6", "nft_numgen", "nf_conntrack_netlink")
		// For pods that run a VPN: /dev/net/tun.
		add(true, "tun")
		// For rules of network policies and of the firewall, also in tables of the family inet.
		add(true, "nft_fib_inet", "nft_reject_inet", "nft_limit", "nft_log", "nft_redir")
	}
	// The file system of STATE and DATA, if it is not built into the kernel.
	add(true, "ext4")
	// The project quotas of DATA (package projectquota); without this module the kernel does not
	// mount DATA.
	add(false, "quota_v2")
	// The power button, the firmware's variables (boot entries), and the file system of the ESP
	// with its default code pages.
	add(true, "button", "evdev", "efivarfs", "vfat", "nls_cp437", "nls_ascii")
	add(false, c.Modules...)
	return list
}

// planMounts lists every mount except the mounts of disks and pods. init creates the first four
// mounts and the mount of the control groups; they are checked again here. The size of a mount
// limits the memory that a fault can fill. Without a fault, the system writes little into these
// mounts. The option noswap keeps the files from swap, because they can contain keys.
func planMounts(f Facts) []mount.Mount {
	const strict = mount.NoSuid | mount.NoDev | mount.NoExec
	list := []mount.Mount{
		{Source: "devtmpfs", Target: "/dev", Type: "devtmpfs", Flags: mount.NoSuid | mount.NoExec},
		{Source: "proc", Target: "/proc", Type: "proc", Flags: strict},
		{Source: "sysfs", Target: "/sys", Type: "sysfs", Flags: strict},
		{Source: "tmpfs", Target: "/run", Type: "tmpfs", Flags: strict, Data: "noswap"},
		{Source: "tmpfs", Target: "/tmp", Type: "tmpfs", Flags: strict, Data: "mode=1777,size=128m,noswap"},
		// Group 5 is tty by convention; ptmxmode lets an unprivileged process open a terminal.
		{Source: "devpts", Target: "/dev/pts", Type: "devpts", Flags: mount.NoSuid | mount.NoExec, Data: "mode=0620,gid=5,ptmxmode=0666"},
		// Pods with hostIPC use these two mounts of the host.
		{Source: "tmpfs", Target: "/dev/shm", Type: "tmpfs", Flags: strict, Data: "mode=1777,size=64m,noswap"},
		{Source: "mqueue", Target: "/dev/mqueue", Type: "mqueue", Flags: strict},
		{Source: "cgroup2", Target: cgroup.Mount, Type: "cgroup2", Flags: strict, Data: cgroup.Options},
		{Source: "bpf", Target: "/sys/fs/bpf", Type: "bpf", Flags: strict, Data: "mode=0700"},
		{Source: "securityfs", Target: "/sys/kernel/security", Type: "securityfs", Flags: strict},
	}
	// debugfs and tracefs are left out: they show and change too much of the kernel.
	if f.EFI {
		list = append(list, mount.Mount{Source: "efivarfs", Target: "/sys/firmware/efi/efivars", Type: "efivarfs", Flags: strict})
	}
	return list
}

// planSysctls joins the system's parameters with the operator's. pkg/config rejects a configuration
// that sets a parameter of the system; if a conflict still occurs, the system's value wins. The
// exceptions are the parameters of systemValues, which the operator may set. A parameter that the
// configuration no longer contains returns to the system's value or, without one, to its previous
// value.
func planSysctls(c Config, f Facts) []Sysctl {
	system := slices.Clone(sysctl.System)
	if c.Pods {
		system = append(system, sysctl.Pods...)
	}
	var list []Sysctl
	listed := func(name string) bool {
		return slices.ContainsFunc(list, func(s Sysctl) bool { return sysctl.Canonical(s.Name) == sysctl.Canonical(name) })
	}
	for _, p := range system {
		list = append(list, Sysctl{Name: p.Name, Value: p.Value, Optional: p.Optional})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sysctls)) {
		if !listed(name) {
			list = append(list, Sysctl{Name: name, Value: operatorValue(name, c.Sysctls[name])})
		}
	}
	for _, s := range systemValues(c, f) {
		if !listed(s.Name) {
			list = append(list, s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.PreviousSysctls)) {
		value, other := c.PreviousSysctls[name], sysctl.Alternative(name)
		switch {
		case listed(name), other != "" && listed(other):
		case value == "0" && c.PreviousSysctls[other] != "":
			// the alternative was in use; when it gets its value back, the kernel sets this
			// parameter to 0
		case c.Pods && !c.ServiceProxy && conntrackNames[sysctl.Canonical(name)]:
			// an external service proxy sets this parameter
		default:
			list = append(list, Sysctl{Name: name, Value: value, Optional: true, Restore: true})
		}
	}
	return list
}

// operatorValue returns the value to set for a parameter of the configuration. The system's own
// ports stay reserved.
func operatorValue(name, value string) string {
	if sysctl.Canonical(name) == reservedPortsName {
		return strings.Trim(strings.TrimSpace(value)+","+reservedPorts(), ",")
	}
	return roundedSysctl(name, value)
}

// systemValues returns the parameters that the system sets and the operator may set to another
// value.
func systemValues(c Config, f Facts) []Sysctl {
	list := []Sysctl{{Name: minFreeName, Value: strconv.FormatInt(minFree(f.Memory), 10)}, {Name: reservedPortsName, Value: reservedPorts()}}
	if c.Pods && c.ServiceProxy {
		list = append(list, conntrack(c, f)...)
	}
	return list
}

// reservedPortsName is the parameter with the ports that the kernel never chooses itself for a
// socket of the machine.
const reservedPortsName = "net.ipv4.ip_local_reserved_ports"

// reservedPorts returns the system's own ports. Without the reservation, an outgoing connection
// could have one of them as its local port, and the process of the port could not listen until that
// connection ends. For example, port 50000 and the port of WireGuard are in the range from which
// the kernel chooses local ports by default.
func reservedPorts() string {
	ports := slices.Concat(nodespec.MachineTCP(), nodespec.MachineUDP(), nodespec.LoopbackTCP())
	slices.Sort(ports)
	var out []string
	for _, port := range slices.Compact(ports) {
		out = append(out, strconv.Itoa(port))
	}
	return strings.Join(out, ",")
}

// Names of the parameters of connection tracking.
const (
	conntrackMax         = "net.netfilter.nf_conntrack_max"
	conntrackBuckets     = "net.netfilter.nf_conntrack_buckets"
	conntrackEstablished = "net.netfilter.nf_conntrack_tcp_timeout_established"
	conntrackCloseWait   = "net.netfilter.nf_conntrack_tcp_timeout_close_wait"
)

// conntrackNames are the parameters that kube-proxy can set.
var conntrackNames = map[string]bool{conntrackMax: true, conntrackBuckets: true, conntrackEstablished: true, conntrackCloseWait: true}

// conntrack returns the parameters of connection tracking with kube-proxy's default values
// (pkg/proxy/conntrack/sysctls.go). The built-in kube-proxy does not set these parameters
// (orchestrator/kubeproxy), because it would overwrite the operator's values at each start. As in
// kube-proxy, the maximum is not below the kernel's, and the hash table has at least a quarter as
// many buckets. The kernel puts each entry into two buckets, so a bucket of a full table has eight
// entries on average. The kernel's own maximum equals its number of buckets; a bucket of a full
// table then has two entries.
//
// The operator's maximum can be far above the number of entries for which the machine has memory,
// and the kernel allocates all buckets at once. So the table gets buckets only for the number of
// entries that fit into the memory.
func conntrack(c Config, f Facts) []Sysctl {
	const perCPU, least, most = 32768, 131072, 1 << 20
	const perBucket, entrySize = 4, 256 // struct nf_conn has at least 256 bytes
	kernelMax := kernelConntrack(f.Memory)
	entries := max(min(max(perCPU*int64(f.CPUs), least), most), kernelMax)
	list := []Sysctl{
		{Name: conntrackMax, Value: strconv.FormatInt(entries, 10)},
		{Name: conntrackEstablished, Value: "86400"}, // seconds
		{Name: conntrackCloseWait, Value: "3600"},
	}
	for name, value := range c.Sysctls {
		if n, err := sysctl.Number(value); err == nil && sysctl.Canonical(name) == conntrackMax {
			entries = int64(min(n, uint64(f.Memory)/entrySize))
		}
	}
	if buckets := wholeBuckets(entries / perBucket); buckets > kernelMax {
		list = append(list, Sysctl{Name: conntrackBuckets, Value: strconv.FormatInt(buckets, 10)})
	}
	return list
}

// wholeBuckets returns a number of buckets rounded up to whole pages of 8-byte pointers, as the
// kernel does (nf_ct_alloc_hashtable in net/netfilter/nf_conntrack_core.c).
func wholeBuckets(n int64) int64 {
	const page = 4096 / 8
	return (n + page - 1) / page * page
}

// roundedSysctl returns the value that the kernel stores when a value is written to a parameter.
// Without the rounding, the value read back would differ and would be set again at every
// reconciliation: each time, the kernel would move all entries to a new hash table.
func roundedSysctl(name, value string) string {
	n, err := sysctl.Number(value)
	if name != conntrackBuckets || err != nil || n > math.MaxInt32 {
		return value
	}
	return strconv.FormatInt(wholeBuckets(int64(n)), 10)
}

// kernelConntrack returns the number of entries and buckets that the kernel gives a machine with
// this memory in bytes (nf_conntrack_init_start in net/netfilter/nf_conntrack_core.c).
func kernelConntrack(memory int64) int64 {
	switch {
	case memory > 4<<30:
		return 262144
	case memory > 1<<30:
		return 65536
	}
	return wholeBuckets(max(memory/16384/8, 1024))
}

// minFreeName is the parameter for the memory that the kernel keeps free for allocations that
// cannot wait, above all for incoming packets.
const minFreeName = "vm.min_free_kbytes"

// minFree returns the value of minFreeName, in KiB, for a machine with memory in bytes. It is the
// kernel's own value (4·√KiB, at most 256 MiB, init_per_zone_wmark_min in mm/page_alloc.c), but at
// least 16 MiB. It is set because, with transparent huge pages, the kernel itself raises the value
// to 66 MiB, to keep memory in large pieces. All watermarks together then take 180 MiB of a small
// machine from its pods (measured: MemAvailable).
func minFree(memory int64) int64 {
	const least, most = 16 << 10, 256 << 10
	return min(max(int64(4*math.Sqrt(float64(memory>>10))), least), most)
}

// planRlimits returns the limits that services inherit from PID 1. The kernel's default for open
// files is too low. Go programs raise the soft limit to the hard limit. Other programs, for example
// with select(2), expect a soft limit of 1024. The soft limit for core dumps disables them. The
// number of processes is unlimited: a limit per user would not separate pods with the same user,
// but control groups do.
func planRlimits() []Rlimit {
	return []Rlimit{
		{Name: "nofile", Soft: 1024, Hard: 1 << 19},
		{Name: "core", Soft: 0, Hard: Unlimited},
		{Name: "nproc", Soft: Unlimited, Hard: Unlimited},
	}
}

func planGroups(c Config, f Facts) []Group {
	memory := min(c.ReservedMemory, f.Memory/2)
	system := Group{Path: cgroup.System, Delegated: controllers, Files: map[string]string{
		"cpu.weight": strconv.Itoa(systemWeight(f.CPUs)),
		"memory.min": wholePages(max(memory, min(machinedMemory, f.Memory/2))),
		// no key of the system reaches a disk through swap (docs/decisions/0109-swap.md)
		cgroup.SwapMax: "0",
	}}
	own := Group{Path: cgroup.Machined, Files: map[string]string{
		"memory.min": wholePages(min(machinedMemory, f.Memory/2)),
		"cpu.weight": "1000", // machined does little work, but all other processes wait for it
	}}
	return []Group{{Path: "/", Delegated: controllers}, system, own}
}

// wholePages returns bytes rounded down to a multiple of the largest page size (pages have 4 to 64
// KiB). The kernel counts pages: it rounds a written value down to whole pages, and returns the
// rounded value (page_counter_memparse in mm/page_counter.c). A value with a part of a page would
// therefore be set again at every reconciliation.
func wholePages(bytes int64) string {
	const largest = 64 << 10
	return strconv.FormatInt(bytes/largest*largest, 10)
}

// systemShare is the ratio of the system's CPU time to the CPU time of all pods together, while
// both use as much as they get.
const systemShare = 4

// systemWeight is systemShare times the weight that the kubelet gives /kubepods if all CPUs of the
// machine are allocatable. If pods use all the CPU time that they get, or fork as fast as possible,
// four fifths of the CPU time remain for the system. The system rarely uses its part, and pods get
// what it does not use. The kubelet converts thousandths of a core to shares (1024 for a core) and
// shares to a weight, 1 + (shares-2)·9999/262142 (KEP-2254; getCPUWeight in
// pkg/kubelet/cm/cgroup_manager_linux.go).
func systemWeight(cpus int) int {
	shares := max(1024*cpus, 2)
	return min(max(systemShare*(1+(shares-2)*9999/262142), 100), 10000)
}

// MachineID derives a machine ID (machine-id(5)) from a permanent property of the machine: its
// public key.
func MachineID(publicKey []byte) string {
	sum := sha256.Sum256(append([]byte("orlop machine id\n"), publicKey...))
	return hex.EncodeToString(sum[:16])
}

package host

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/sysctl"
)

// Config is the part of the machine's configuration that concerns the host. The zero Config is a
// machine that has none yet: everything is set but reservations.
type Config struct {
	// bytes kept for the system; never more than half of the machine's
	ReservedMemory int64
	Sysctls        map[string]string // the operator's kernel parameters, by dotted name
	Modules        []string          // the operator's kernel modules
	Pods           bool              // pods will run here
	// PreviousSysctls are values of kernel parameters from before this package first set them, by dotted
	// name (Kernel.Former). Parameters that the configuration no longer names go back to them.
	Former    map[string]string
	MachineID string // 32 lower-case hexadecimal digits; empty for none yet. See MachineID
}

// Facts are what the plan needs to know about the machine. They do not change while it runs.
type Facts struct {
	Memory int64 // bytes (MemTotal)
	CPUs   int   // online
	EFI    bool  // started by UEFI firmware
}

// Want is how the host should be.
type Want struct {
	Modules   []Module
	Mounts    []mount.Mount
	Shared    bool // mounts propagate to and from containers (kubelet: mountPropagation)
	Sysctls   []Sysctl
	Rlimits   []Rlimit
	Groups    []Group // parents first
	Home      string  // the control group that machined is in
	MachineID string
}

// Module is a kernel module that should be loaded.
type Module struct {
	Name string
	// Optional ones are skipped when the image does not have them.
	Optional bool
}

// Sysctl is a kernel parameter.
type Sysctl struct {
	Name  string // dotted, as sysctl(8) writes it
	Value string
	// Optional ones are skipped when the kernel does not have them.
	Optional bool
	// PreviousSysctls ones go back to the value that they had before they were configured.
	Former bool
}

// Rlimit is a resource limit of machined's own, which everything it starts inherits.
type Rlimit struct {
	Name       string // "core", as in /proc/PID/limits
	Soft, Hard uint64 // Unlimited for none
}

// Unlimited is RLIM_INFINITY (getrlimit(2)).
const Unlimited = ^uint64(0)

// Group is a control group.
type Group struct {
	Path  string
	Files map[string]string // values by file
	// controllers handed down to its children, as far as the kernel has them
	Delegated []string
}

// Names of the control groups. Services' groups lie in GroupSystem.
const (
	GroupSystem   = "/orlop"
	GroupMachined = "/orlop/machined"
)

// controllers are those that the kubelet asks for, and io, which its statistics come from.
var controllers = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}

// machinedMemory is kept for PID 1: its promised 25 MiB of anonymous memory and some of its text.
const machinedMemory = 40 << 20

// Plan says how the host should be.
func Plan(c Config, f Facts) Want {
	return Want{
		Modules:   planModules(c),
		Mounts:    planMounts(f),
		Shared:    true,
		Sysctls:   planSysctls(c, f),
		Rlimits:   planRlimits(),
		Groups:    planGroups(c, f),
		Home:      GroupMachined,
		MachineID: c.MachineID,
	}
}

// planModules lists what the kernel would otherwise look for with modprobe(8), which the image does
// not have (see kernel.modprobe in sysctls.go): nobody in a pod can make the kernel load code.
// Modules that devices ask for are not here. What pods, the service proxy and the CNI plugins use
// is loaded only where there will be pods: it is most of the code and of the time (0.5 s under
// emulation), and the machine's own API waits for this list.
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
		// containerd's snapshots, the pod bridge and its links, bridged packets through the service
		// proxy's rules.
		add(false, "overlay", "bridge", "veth", "br_netfilter")
		// kube-proxy in nftables mode, the masquerading and port mapping of the CNI plugins.
		add(false, "nf_tables", "nft_chain_nat", "nft_ct", "nft_nat", "nft_masq", "nft_fib_ipv4", "nft_fib_ipv6",
			"nft_reject_ipv4", "nft_reject_ipv6", "nft_numgen", "nf_conntrack_netlink")
		// /dev/net/tun, for pods that bring a VPN.
		add(true, "tun")
		// Rules of network policies and the firewall; the inet family.
		add(true, "nft_fib_inet", "nft_reject_inet", "nft_limit", "nft_log", "nft_redir")
	}
	// The file system of STATE and DATA, where it is not a part of the kernel.
	add(true, "ext4")
	// What DATA counts projects with (package projectquota); the kernel does not mount it without.
	add(false, "quota_v2")
	// The power button, the firmware's variables (boot entries), and the ESP's file system with its
	// default code pages.
	add(true, "button", "evdev", "efivarfs", "vfat", "nls_cp437", "nls_ascii")
	add(false, c.Modules...)
	return list
}

// planMounts lists every mount that is neither a disk's nor a pod's. The first four were made by
// init and are checked again here. Sizes bound what a fault can take: nothing of ours writes much
// there.
func planMounts(f Facts) []mount.Mount {
	const strict = mount.NoSuid | mount.NoDev | mount.NoExec
	list := []mount.Mount{
		{Source: "devtmpfs", Target: "/dev", Type: "devtmpfs", Flags: mount.NoSuid | mount.NoExec},
		{Source: "proc", Target: "/proc", Type: "proc", Flags: strict},
		{Source: "sysfs", Target: "/sys", Type: "sysfs", Flags: strict},
		{Source: "tmpfs", Target: "/run", Type: "tmpfs", Flags: strict},
		{Source: "tmpfs", Target: "/tmp", Type: "tmpfs", Flags: strict, Data: "mode=1777,size=128m"},
		// Group 5 is tty, as everywhere; ptmxmode lets a process without privileges have a terminal
		// of its own.
		{Source: "devpts", Target: "/dev/pts", Type: "devpts", Flags: mount.NoSuid | mount.NoExec, Data: "mode=0620,gid=5,ptmxmode=0666"},
		// Pods with hostIPC get these two of the host.
		{Source: "tmpfs", Target: "/dev/shm", Type: "tmpfs", Flags: strict, Data: "mode=1777,size=64m"},
		{Source: "mqueue", Target: "/dev/mqueue", Type: "mqueue", Flags: strict},
		{Source: "cgroup2", Target: "/sys/fs/cgroup", Type: "cgroup2", Flags: strict, Data: "nsdelegate,memory_recursiveprot"},
		{Source: "bpf", Target: "/sys/fs/bpf", Type: "bpf", Flags: strict, Data: "mode=0700"},
		{Source: "securityfs", Target: "/sys/kernel/security", Type: "securityfs", Flags: strict},
	}
	// debugfs and tracefs are left out: they show and change too much of the kernel.
	if f.EFI {
		list = append(list, mount.Mount{Source: "efivarfs", Target: "/sys/firmware/efi/efivars", Type: "efivarfs", Flags: strict})
	}
	return list
}

// planSysctls joins our parameters with the operator's. pkg/config refuses a configuration that
// names one of ours; if one comes here all the same, ours holds; but for the memory that the kernel
// keeps free, which an operator may know better.
func planSysctls(c Config, f Facts) []Sysctl {
	own := slices.Clone(sysctl.System)
	if c.Pods {
		own = append(own, sysctl.Pods...)
	}
	var list []Sysctl
	for _, p := range own {
		list = append(list, Sysctl{Name: p.Name, Value: p.Value, Optional: p.Optional})
	}
	if _, set := c.Sysctls[minFreeName]; !set {
		list = append(list, Sysctl{Name: minFreeName, Value: strconv.FormatInt(minFree(f.Memory), 10)})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sysctls)) {
		if !slices.ContainsFunc(list, func(s Sysctl) bool { return s.Name == name }) {
			list = append(list, Sysctl{Name: name, Value: c.Sysctls[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Former)) {
		if !slices.ContainsFunc(list, func(s Sysctl) bool { return s.Name == name }) {
			list = append(list, Sysctl{Name: name, Value: c.Former[name], Optional: true, Former: true})
		}
	}
	return list
}

// minFreeName is how much memory the kernel keeps free for what cannot wait: packets that arrive,
// above all.
const minFreeName = "vm.min_free_kbytes"

// minFree is what the kernel sets for a machine with that many bytes of memory (4·√KiB,
// init_per_zone_wmark_min in mm/page_alloc.c), but at least 16 MiB; in KiB. With transparent huge
// pages the kernel raises it to 66 MiB, to keep memory in large pieces; of which all watermarks
// together take 180 MiB of a small machine from its pods (measured: MemAvailable).
func minFree(memory int64) int64 {
	const least, most = 16 << 10, 256 << 10
	return min(max(int64(4*math.Sqrt(float64(memory>>10))), least), most)
}

// planRlimits: PID 1 has the kernel's limits of 1976 for open files and hands them on. Go programs
// raise themselves to the hard limit; others (and select(2)) expect the soft one. No core dumps.
// The number of processes of a user is no boundary between pods that run as the same user, control
// groups are.
func planRlimits() []Rlimit {
	return []Rlimit{
		{Name: "nofile", Soft: 1024, Hard: 1 << 19},
		{Name: "core", Soft: 0, Hard: Unlimited},
		{Name: "nproc", Soft: Unlimited, Hard: Unlimited},
	}
}

func planGroups(c Config, f Facts) []Group {
	memory := min(c.ReservedMemory, f.Memory/2)
	system := Group{Path: GroupSystem, Delegated: controllers, Files: map[string]string{
		"cpu.weight": strconv.Itoa(systemWeight(f.CPUs)),
		"memory.min": wholePages(max(memory, min(machinedMemory, f.Memory/2))),
	}}
	own := Group{Path: GroupMachined, Files: map[string]string{
		"memory.min": wholePages(min(machinedMemory, f.Memory/2)),
		"cpu.weight": "1000", // it does little, and everything waits for it
	}}
	return []Group{{Path: "/", Delegated: controllers}, system, own}
}

// wholePages is the number of bytes as the kernel keeps it for a control group: it counts pages,
// and what is read back is rounded down to them (page_counter_memparse in mm/page_counter.c).
// Anything else would be set again for ever. Pages are 4 to 64 KiB large.
func wholePages(bytes int64) string {
	const largest = 64 << 10
	return strconv.FormatInt(bytes/largest*largest, 10)
}

// systemShare is how many times as much CPU the system gets as all pods together while both want
// all of it.
const systemShare = 4

// systemWeight is systemShare times the weight that the kubelet gives /kubepods when all of the
// machine's CPU is allocatable: pods that want all of it, or fork as fast as they can, leave the
// system four fifths. The system uses that seldom, and pods get all that it leaves. The kubelet
// converts thousandths of a core to shares (1024 for a core) and those to a weight, 1 +
// (shares-2)·9999/262142 (KEP-2254; getCPUWeight in pkg/kubelet/cm/cgroup_manager_linux.go).
func systemWeight(cpus int) int {
	shares := max(1024*cpus, 2)
	return min(max(systemShare*(1+(shares-2)*9999/262142), 100), 10000)
}

// MachineID makes a machine id (machine-id(5)) from something that is the machine's own and
// lasting: its public key.
func MachineID(publicKey []byte) string {
	sum := sha256.Sum256(append([]byte("orlop machine id\n"), publicKey...))
	return hex.EncodeToString(sum[:16])
}

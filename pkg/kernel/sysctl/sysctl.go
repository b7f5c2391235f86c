// Package sysctl has the tables of all kernel parameters that the system sets, with the reason for
// each. machined/host sets the parameters in System and Pods, and machined/network sets those in
// Links for each link. pkg/config rejects a configuration that sets a parameter of these tables or
// of Reserved. Names are dotted, as in sysctl(8), and relative to /proc/sys. A "/" in a name stands
// for a dot within a part, such as the name of a link.
//
// To add a parameter, add a row to a table.
package sysctl

import "strings"

// Parameter is a kernel parameter that a configuration cannot set.
type Parameter struct {
	Name  string // dotted, such as net.ipv4.ip_forward
	Value string // the value that the system sets; unused in Reserved
	// Optional parameters are skipped on a kernel that lacks them.
	Optional bool
	// Reason says why a configuration cannot set the parameter, for the error message.
	Reason string
}

const (
	hardening  = "hardening"
	forwarding = "pods could not reach anything without it"
	kubelet    = "the kubelet does not start with another value"
	panics     = "a broken kernel must reset, or an upgrade could not be rolled back"
	links      = "it follows from Network.spec.links"
	routing    = "the machine neither accepts routes from strangers nor sends redirects"
	// The kernel combines the value of a link with the value for all links: it uses the greater
	// value, or requires that both are set (IN_DEV_MAXCONF and IN_DEV_ANDCONF in
	// include/linux/inetdevice.h). So the value of a link alone has no effect.
	allLinks = "the value for all links (net.ipv4.conf.all) decides, and the system sets it"
	manyPods = "it has the value that many pods on one machine need"
	hostname = "the host name is the machine's name"
)

// System lists the parameters of every machine. Sources of the values:
//
//	KSPP     Kernel Self-Protection Project, Recommended Settings (kspp.github.io)
//	kubelet  pkg/kubelet/cm, the values that --protect-kernel-defaults requires
//	doc      the kernel's Documentation/admin-guide/sysctl and networking/ip-sysctl
//
// These recommendations of KSPP are not followed: user.max_user_namespaces=0 (pods with hostUsers:
// false need user namespaces), kernel.modules_disabled=1 (modules for devices are loaded later),
// kernel.yama.ptrace_scope=3 (the value 2 still permits debuggers with CAP_SYS_PTRACE),
// kernel.warn_limit=1 (a warning of a driver must not stop the machine).
var System = []Parameter{
	// KSPP: hide information about the kernel from programs.
	{Name: "kernel.kptr_restrict", Value: "2", Reason: hardening},
	{Name: "kernel.dmesg_restrict", Value: "1", Reason: hardening},
	// 3, an extension of Debian's kernel: no use of perf without CAP_PERFMON
	{Name: "kernel.perf_event_paranoid", Value: "3", Reason: hardening},
	{Name: "kernel.randomize_va_space", Value: "2", Reason: hardening},
	// KSPP: restrict functions of the kernel that attackers can use.
	{Name: "kernel.kexec_load_disabled", Value: "1", Optional: true, Reason: hardening},
	{Name: "kernel.unprivileged_bpf_disabled", Value: "1", Optional: true, Reason: hardening},
	{Name: "net.core.bpf_jit_harden", Value: "2", Optional: true, Reason: hardening},
	{Name: "kernel.yama.ptrace_scope", Value: "2", Optional: true, Reason: hardening},
	{Name: "kernel.io_uring_disabled", Value: "2", Optional: true, Reason: hardening},
	{Name: "vm.unprivileged_userfaultfd", Value: "0", Optional: true, Reason: hardening},
	{Name: "vm.mmap_min_addr", Value: "65536", Reason: hardening},
	{Name: "dev.tty.ldisc_autoload", Value: "0", Reason: hardening},
	{Name: "dev.tty.legacy_tiocsti", Value: "0", Optional: true, Reason: hardening},
	{Name: "kernel.sysrq", Value: "0", Optional: true, Reason: hardening},
	// KSPP: protect files in directories to which other users can write.
	{Name: "fs.protected_symlinks", Value: "1", Reason: hardening},
	{Name: "fs.protected_hardlinks", Value: "1", Reason: hardening},
	{Name: "fs.protected_fifos", Value: "2", Reason: hardening},
	{Name: "fs.protected_regular", Value: "2", Reason: hardening},
	{Name: "fs.suid_dumpable", Value: "0", Reason: hardening},
	// doc: the kernel starts no programs by itself: none for core dumps (the named program does not
	// exist, so no core dump is written), none to load modules on demand (planModules loads
	// modules), and none for hotplug.
	{Name: "kernel.core_pattern", Value: "|/none", Reason: hardening},
	{Name: "kernel.modprobe", Value: "", Reason: hardening},
	{Name: "kernel.hotplug", Value: "", Optional: true, Reason: hardening},
	// doc: Ctrl-Alt-Del sends a signal to PID 1, which then shuts down in order.
	{Name: "kernel.ctrl-alt-del", Value: "0", Reason: hardening},

	// kubelet. panic=10 and panic_on_oops also make a broken kernel reset the machine, so that the
	// boot loader counts a failed try.
	{Name: "vm.overcommit_memory", Value: "1", Reason: kubelet},
	{Name: "vm.panic_on_oom", Value: "0", Reason: kubelet},
	{Name: "kernel.panic", Value: "10", Reason: panics},
	{Name: "kernel.panic_on_oops", Value: "1", Reason: panics},
	{Name: "kernel.keys.root_maxkeys", Value: "1000000", Optional: true, Reason: kubelet},
	{Name: "kernel.keys.root_maxbytes", Value: "25000000", Optional: true, Reason: kubelet},

	// Kubernetes: pods' packets are forwarded. Forwarding is enabled before any link is up: at the
	// moment of the change, the kernel removes the routes from router advertisements.
	{Name: "net.ipv4.ip_forward", Value: "1", Reason: forwarding},
	{Name: "net.ipv6.conf.all.forwarding", Value: "1", Optional: true, Reason: forwarding},

	// Loose reverse-path filtering (RFC 3704, 2.4): the kernel drops a packet only if no route
	// leads to its source. Strict filtering would also drop a packet from a source that is routed
	// through another link; tunnels between nodes and machines with two networks cause such
	// packets.
	{Name: "net.ipv4.conf.all.rp_filter", Value: "2", Reason: routing},
	{Name: "net.ipv4.conf.default.rp_filter", Value: "2", Reason: routing},
	// doc: a machine with configured routes accepts no redirects and source routes from other
	// hosts, and sends no redirects.
	{Name: "net.ipv4.conf.all.accept_redirects", Value: "0", Reason: routing},
	{Name: "net.ipv4.conf.default.accept_redirects", Value: "0", Reason: routing},
	{Name: "net.ipv4.conf.all.secure_redirects", Value: "0", Reason: routing},
	{Name: "net.ipv4.conf.default.secure_redirects", Value: "0", Reason: routing},
	{Name: "net.ipv4.conf.all.send_redirects", Value: "0", Reason: routing},
	{Name: "net.ipv4.conf.default.send_redirects", Value: "0", Reason: routing},
	{Name: "net.ipv4.conf.all.accept_source_route", Value: "0", Reason: routing},
	{Name: "net.ipv4.conf.default.accept_source_route", Value: "0", Reason: routing},
	{Name: "net.ipv6.conf.all.accept_redirects", Value: "0", Optional: true, Reason: routing},
	{Name: "net.ipv6.conf.default.accept_redirects", Value: "0", Optional: true, Reason: routing},
	{Name: "net.ipv6.conf.all.accept_source_route", Value: "0", Optional: true, Reason: routing},
	{Name: "net.ipv4.tcp_syncookies", Value: "1", Reason: routing},
	{Name: "net.ipv4.tcp_rfc1337", Value: "1", Reason: routing},
	{Name: "net.ipv4.icmp_echo_ignore_broadcasts", Value: "1", Reason: routing},
	{Name: "net.ipv4.icmp_ignore_bogus_error_responses", Value: "1", Reason: routing},

	// Many pods: each pod watches files, maps memory, and has threads and neighbor entries. The
	// kernel's defaults are sufficient for a single user only.
	{Name: "fs.inotify.max_user_instances", Value: "8192", Reason: manyPods},
	{Name: "fs.inotify.max_user_watches", Value: "524288", Reason: manyPods},
	{Name: "kernel.pid_max", Value: "4194304", Reason: manyPods},
	{Name: "vm.max_map_count", Value: "1048576", Reason: manyPods},
	{Name: "net.ipv4.neigh.default.gc_thresh2", Value: "4096", Reason: manyPods},
	{Name: "net.ipv4.neigh.default.gc_thresh3", Value: "8192", Reason: manyPods},
	{Name: "net.ipv6.neigh.default.gc_thresh2", Value: "4096", Optional: true, Reason: manyPods},
	{Name: "net.ipv6.neigh.default.gc_thresh3", Value: "8192", Optional: true, Reason: manyPods},
}

// Pods lists the parameters that exist only after the modules for pods are loaded. With their
// values, packets between pods on the same bridge pass through the rules of the service proxy.
var Pods = []Parameter{
	{Name: "net.bridge.bridge-nf-call-iptables", Value: "1", Reason: forwarding},
	{Name: "net.bridge.bridge-nf-call-ip6tables", Value: "1", Optional: true, Reason: forwarding},
}

// Reserved lists further parameters that a configuration cannot set: the system retains their
// default, sets them by another name, or sets them from other fields of the configuration.
var Reserved = []Parameter{
	{Name: "kernel.modules_disabled", Reason: hardening},
	{Name: "kernel.oops_limit", Reason: hardening},
	{Name: "kernel.warn_limit", Reason: hardening},
	{Name: "net.ipv4.conf.all.forwarding", Reason: forwarding},
	{Name: "kernel.hostname", Reason: hostname},
	{Name: "kernel.domainname", Reason: hostname},
}

// LinkParameter is a parameter that exists for each link: net.FAMILY.conf.LINK.NAME.
type LinkParameter struct {
	Family string // ipv4 or ipv6
	Name   string // such as accept_ra
	Value  string // the value on managed links; "" if it is computed or not set
	Reason string
}

// AcceptRA is the value of accept_ra with which a link accepts router advertisements although the
// machine forwards packets, as every Kubernetes node does. With the value 0, a link never accepts
// them.
const AcceptRA = "2"

// Links lists the parameters of links that a configuration cannot set.
//
// Without promote_secondaries, the kernel removes the other addresses of a subnet together with the
// first address. Without ignore_routes_with_linkdown, the kernel continues to use the routes of a
// link with an unplugged cable, and no other link replaces it. The value of accept_ra depends on
// Network.spec.links (AcceptRA).
var Links = []LinkParameter{
	{Family: "ipv4", Name: "promote_secondaries", Value: "1", Reason: links},
	{Family: "ipv4", Name: "ignore_routes_with_linkdown", Value: "1", Reason: links},
	{Family: "ipv6", Name: "ignore_routes_with_linkdown", Value: "1", Reason: links},
	{Family: "ipv6", Name: "accept_ra", Reason: links},
	{Family: "ipv4", Name: "forwarding", Reason: forwarding},
	{Family: "ipv6", Name: "forwarding", Reason: forwarding},
	{Family: "ipv4", Name: "rp_filter", Reason: allLinks},
	{Family: "ipv4", Name: "accept_redirects", Reason: allLinks},
	{Family: "ipv4", Name: "accept_source_route", Reason: allLinks},
	// The link's own value is enough to enable these two (IN_DEV_ORCONF in
	// include/linux/inetdevice.h).
	{Family: "ipv4", Name: "send_redirects", Reason: routing},
	{Family: "ipv4", Name: "secure_redirects", Reason: routing},
}

// ReservedReason returns the reason why a configuration cannot set the named parameter, or "" if it
// can. A configuration can set vm.min_free_kbytes, although machined/host also computes a value for
// it.
func ReservedReason(name string) string {
	name = Canonical(name)
	for _, table := range [][]Parameter{System, Pods, Reserved} {
		for _, p := range table {
			if p.Name == name {
				return p.Reason
			}
		}
	}
	if strings.HasPrefix(name, "fs.binfmt_misc.") {
		return hardening
	}
	parts := strings.Split(name, ".")
	if len(parts) != 5 || parts[0] != "net" || parts[2] != "conf" {
		return ""
	}
	for _, p := range Links {
		if p.Family == parts[1] && p.Name == parts[4] {
			return p.Reason
		}
	}
	return ""
}

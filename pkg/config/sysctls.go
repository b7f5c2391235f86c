package config

import "strings"

// OwnSysctl says why a kernel parameter cannot be set by a configuration, or "" when it can. These
// are the parameters that harden the machine (Kernel Self-Protection Project), that pods need, that
// the kubelet insists on, or that the links have (machined/network). All that machined/host sets is
// here but vm.min_free_kbytes, which an operator may know better.
func OwnSysctl(name string) string {
	const (
		hardening = "hardening"
		pods      = "pods could not reach anything without it"
		kubelet   = "the kubelet does not start with another value"
		panics    = "a broken kernel must reset, or an upgrade could not be rolled back"
		links     = "it follows from Network.spec.links"
		strangers = "the machine takes no routes from strangers, and gives none"
		// The kernel takes the greater of the two values, or both have to be set (IN_DEV_MAXCONF
		// and IN_DEV_ANDCONF in include/linux/inetdevice.h): none of one link would be in force.
		all  = "that of all links (net.ipv4.conf.all) decides, and the system sets it"
		many = "it has the value that many pods on one machine need"
	)
	switch name {
	case "kernel.kptr_restrict", "kernel.dmesg_restrict", "kernel.perf_event_paranoid", "kernel.kexec_load_disabled",
		"kernel.randomize_va_space", "kernel.unprivileged_bpf_disabled", "kernel.yama.ptrace_scope", "kernel.sysrq",
		"kernel.modules_disabled", "kernel.core_pattern", "kernel.modprobe", "kernel.hotplug", "kernel.oops_limit",
		"kernel.warn_limit", "kernel.io_uring_disabled", "kernel.ctrl-alt-del", "net.core.bpf_jit_harden",
		"dev.tty.ldisc_autoload", "dev.tty.legacy_tiocsti", "vm.unprivileged_userfaultfd", "vm.mmap_min_addr",
		"fs.protected_symlinks", "fs.protected_hardlinks", "fs.protected_fifos", "fs.protected_regular",
		"fs.suid_dumpable":
		return hardening
	case "net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding", "net.ipv6.conf.all.forwarding",
		"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables":
		return pods
	case "vm.overcommit_memory", "vm.panic_on_oom", "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes":
		return kubelet
	case "kernel.panic", "kernel.panic_on_oops":
		return panics
	case "net.ipv4.conf.all.rp_filter", "net.ipv4.conf.default.rp_filter",
		"net.ipv4.conf.all.accept_redirects", "net.ipv4.conf.default.accept_redirects",
		"net.ipv4.conf.all.secure_redirects", "net.ipv4.conf.default.secure_redirects",
		"net.ipv4.conf.all.send_redirects", "net.ipv4.conf.default.send_redirects",
		"net.ipv4.conf.all.accept_source_route", "net.ipv4.conf.default.accept_source_route",
		"net.ipv6.conf.all.accept_redirects", "net.ipv6.conf.default.accept_redirects", "net.ipv6.conf.all.accept_source_route",
		"net.ipv4.tcp_syncookies", "net.ipv4.tcp_rfc1337", "net.ipv4.icmp_echo_ignore_broadcasts", "net.ipv4.icmp_ignore_bogus_error_responses":
		return strangers
	case "fs.inotify.max_user_instances", "fs.inotify.max_user_watches", "kernel.pid_max", "vm.max_map_count",
		"net.ipv4.neigh.default.gc_thresh2", "net.ipv4.neigh.default.gc_thresh3",
		"net.ipv6.neigh.default.gc_thresh2", "net.ipv6.neigh.default.gc_thresh3":
		return many
	case "kernel.hostname", "kernel.domainname":
		return "the host name is the machine's name"
	}
	if strings.HasPrefix(name, "fs.binfmt_misc.") {
		return hardening
	}
	// net.ipv4.conf.LINK.PARAMETER; a dot of the link's name is written as "/".
	if parts := strings.Split(name, "."); len(parts) == 5 && parts[0] == "net" && parts[2] == "conf" {
		switch parts[1] + "/" + parts[4] {
		case "ipv4/forwarding", "ipv6/forwarding":
			return pods
		case "ipv4/rp_filter", "ipv4/accept_redirects", "ipv4/accept_source_route":
			return all
		case "ipv4/promote_secondaries", "ipv4/ignore_routes_with_linkdown", "ipv6/ignore_routes_with_linkdown", "ipv6/accept_ra":
			return links
		}
	}
	return ""
}

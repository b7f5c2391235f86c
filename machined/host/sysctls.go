package host

// ownSysctls are the kernel parameters that the system sets itself, with where each comes from:
//
//	KSPP     Kernel Self-Protection Project, Recommended Settings (kspp.github.io)
//	kubelet  pkg/kubelet/cm, what --protect-kernel-defaults insists on
//	doc      the kernel's Documentation/admin-guide/sysctl and networking/ip-sysctl
//
// Deliberately not taken from KSPP: user.max_user_namespaces=0 (pods with hostUsers: false need
// them), kernel.modules_disabled=1 (modules of devices come later), kernel.yama.ptrace_scope=3 (2
// asks for CAP_SYS_PTRACE and leaves a debugger to those who may have it), kernel.warn_limit=1 (a
// warning of a driver must not take a node down).
var ownSysctls = []Sysctl{
	// KSPP: what the kernel tells about itself.
	{Name: "kernel.kptr_restrict", Value: "2"},
	{Name: "kernel.dmesg_restrict", Value: "1"},
	// 3 is Debian's: not at all without CAP_PERFMON
	{Name: "kernel.perf_event_paranoid", Value: "3"},
	{Name: "kernel.randomize_va_space", Value: "2"},
	// KSPP: ways into the kernel.
	{Name: "kernel.kexec_load_disabled", Value: "1", Optional: true},
	{Name: "kernel.unprivileged_bpf_disabled", Value: "1", Optional: true},
	{Name: "net.core.bpf_jit_harden", Value: "2", Optional: true},
	{Name: "kernel.yama.ptrace_scope", Value: "2", Optional: true},
	{Name: "kernel.io_uring_disabled", Value: "2", Optional: true},
	{Name: "vm.unprivileged_userfaultfd", Value: "0", Optional: true},
	{Name: "vm.mmap_min_addr", Value: "65536"},
	{Name: "dev.tty.ldisc_autoload", Value: "0"},
	{Name: "dev.tty.legacy_tiocsti", Value: "0", Optional: true},
	{Name: "kernel.sysrq", Value: "0", Optional: true},
	// KSPP: files in folders that others write to.
	{Name: "fs.protected_symlinks", Value: "1"},
	{Name: "fs.protected_hardlinks", Value: "1"},
	{Name: "fs.protected_fifos", Value: "2"},
	{Name: "fs.protected_regular", Value: "2"},
	{Name: "fs.suid_dumpable", Value: "0"},
	// doc: programs that the kernel would start by itself. There are none: no core dumps (a pipe to
	// a program that does not exist writes nothing), no modules on demand (planModules loads them),
	// no hotplug helper.
	{Name: "kernel.core_pattern", Value: "|/none"},
	{Name: "kernel.modprobe", Value: ""},
	{Name: "kernel.hotplug", Value: "", Optional: true},
	// doc: Ctrl-Alt-Del is a signal to PID 1, which goes down in order.
	{Name: "kernel.ctrl-alt-del", Value: "0"},

	// kubelet. panic=10 and panic_on_oops also make a broken kernel reset, so that the loader
	// counts the attempt.
	{Name: "vm.overcommit_memory", Value: "1"},
	{Name: "vm.panic_on_oom", Value: "0"},
	{Name: "kernel.panic", Value: "10"},
	{Name: "kernel.panic_on_oops", Value: "1"},
	{Name: "kernel.keys.root_maxkeys", Value: "1000000", Optional: true},
	{Name: "kernel.keys.root_maxbytes", Value: "25000000", Optional: true},

	// Kubernetes: pods' packets are forwarded. It is set before any link is up, because the kernel
	// forgets routes that routers announced when it begins to forward.
	{Name: "net.ipv4.ip_forward", Value: "1"},
	{Name: "net.ipv6.conf.all.forwarding", Value: "1", Optional: true},

	// Loose (RFC 3704, 2.4): a packet whose sender no route leads to is dropped, one that came
	// another way is not; strict would drop the latter, which tunnels between nodes and machines
	// with two networks have.
	{Name: "net.ipv4.conf.all.rp_filter", Value: "2"},
	{Name: "net.ipv4.conf.default.rp_filter", Value: "2"},
	// doc: a machine with fixed routes takes none from strangers and gives none.
	{Name: "net.ipv4.conf.all.accept_redirects", Value: "0"},
	{Name: "net.ipv4.conf.default.accept_redirects", Value: "0"},
	{Name: "net.ipv4.conf.all.secure_redirects", Value: "0"},
	{Name: "net.ipv4.conf.default.secure_redirects", Value: "0"},
	{Name: "net.ipv4.conf.all.send_redirects", Value: "0"},
	{Name: "net.ipv4.conf.default.send_redirects", Value: "0"},
	{Name: "net.ipv4.conf.all.accept_source_route", Value: "0"},
	{Name: "net.ipv4.conf.default.accept_source_route", Value: "0"},
	{Name: "net.ipv6.conf.all.accept_redirects", Value: "0", Optional: true},
	{Name: "net.ipv6.conf.default.accept_redirects", Value: "0", Optional: true},
	{Name: "net.ipv6.conf.all.accept_source_route", Value: "0", Optional: true},
	{Name: "net.ipv4.tcp_syncookies", Value: "1"},
	{Name: "net.ipv4.tcp_rfc1337", Value: "1"},
	{Name: "net.ipv4.icmp_echo_ignore_broadcasts", Value: "1"},
	{Name: "net.ipv4.icmp_ignore_bogus_error_responses", Value: "1"},

	// Many pods: each watches files, maps memory, has threads and neighbours. The kernel's defaults
	// are for one user.
	{Name: "fs.inotify.max_user_instances", Value: "8192"},
	{Name: "fs.inotify.max_user_watches", Value: "524288"},
	{Name: "kernel.pid_max", Value: "4194304"},
	{Name: "vm.max_map_count", Value: "1048576"},
	{Name: "net.ipv4.neigh.default.gc_thresh2", Value: "4096"},
	{Name: "net.ipv4.neigh.default.gc_thresh3", Value: "8192"},
	{Name: "net.ipv6.neigh.default.gc_thresh2", Value: "4096", Optional: true},
	{Name: "net.ipv6.neigh.default.gc_thresh3", Value: "8192", Optional: true},
}

// podSysctls come with the modules that planModules loads for pods: packets between pods on one
// bridge pass the service proxy's rules.
var podSysctls = []Sysctl{
	{Name: "net.bridge.bridge-nf-call-iptables", Value: "1"},
	{Name: "net.bridge.bridge-nf-call-ip6tables", Value: "1", Optional: true},
}

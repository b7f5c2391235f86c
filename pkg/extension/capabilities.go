package extension

import "golang.org/x/sys/unix"

// capabilities are the capabilities that a service can have. SYS_MODULE is missing because machined
// loads the modules. SYS_BOOT, MAC_ADMIN and MAC_OVERRIDE are missing because with them a service
// could change the system itself.
var capabilities = map[string]uintptr{
	"AUDIT_WRITE": unix.CAP_AUDIT_WRITE, "BPF": unix.CAP_BPF, "CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE,
	"DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH, "FOWNER": unix.CAP_FOWNER, "IPC_LOCK": unix.CAP_IPC_LOCK, "KILL": unix.CAP_KILL,
	"MKNOD": unix.CAP_MKNOD, "NET_ADMIN": unix.CAP_NET_ADMIN, "NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "NET_RAW": unix.CAP_NET_RAW,
	"PERFMON": unix.CAP_PERFMON, "SETGID": unix.CAP_SETGID, "SETUID": unix.CAP_SETUID, "SYS_ADMIN": unix.CAP_SYS_ADMIN,
	"SYS_NICE": unix.CAP_SYS_NICE, "SYS_PTRACE": unix.CAP_SYS_PTRACE, "SYS_RAWIO": unix.CAP_SYS_RAWIO, "SYS_RESOURCE": unix.CAP_SYS_RESOURCE,
	"SYS_TIME": unix.CAP_SYS_TIME, "SYSLOG": unix.CAP_SYSLOG,
}

// CapabilityNumbers returns the kernel's numbers of the capabilities (unix.CAP_…).
func (s Service) CapabilityNumbers() []uintptr {
	var all []uintptr
	for _, name := range s.Capabilities {
		all = append(all, capabilities[name])
	}
	return all
}

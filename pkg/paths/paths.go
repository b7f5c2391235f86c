// Package paths holds every fixed path of the running system, each in one place, with what lives
// there and who owns it. It imports nothing.
package paths

// The executables in the read-only root.
const (
	Machined     = "/usr/bin/machined"
	Diskprobe    = "/usr/bin/diskprobe" // machined under another name
	Orchestrator = "/usr/bin/orchestrator"
	Containerd   = "/usr/bin/containerd"
	Runc         = "/usr/bin/runc"
	CNIPlugins   = "/usr/libexec/cni"
	Mke2fs       = "/usr/sbin/mke2fs"
	E2fsck       = "/usr/sbin/e2fsck"
	MkfsFat      = "/usr/sbin/mkfs.fat"
	Nft          = "/usr/sbin/nft"
	// Modules holds one folder per kernel release, as depmod lays it out.
	Modules = "/usr/lib/modules"
	// Images holds the OCI archives that are part of the system (the pause image), one file each.
	Images = "/usr/share/orlop/images"
	// BuildInfo is a JSON file written by the imager: version, build time, root hash inputs
	// (pkg/buildinfo.Release).
	BuildInfo = "/usr/share/orlop/release.json"
	// OperatorCA is the operator's CA certificate (PEM) that the image was built for. The file is
	// missing in a generic image.
	OperatorCA = "/usr/share/orlop/operator-ca.crt"
	// ReleaseKeys are the public keys (PEM, Ed25519) of those who may sign the versions that can
	// follow this one. The file is missing in an image that cannot be upgraded.
	ReleaseKeys = "/usr/share/orlop/release-keys.pem"
	// EmbeddedConfig is a configuration that the image was built with; usually missing.
	EmbeddedConfig = "/usr/share/orlop/config.yaml"
)

// Mount points of the writable partitions.
const (
	// State is where the STATE partition is mounted: nosuid, nodev, noexec.
	State = "/state"
	// Data is where the DATA partition is mounted: nosuid, nodev (containers' root filesystems live
	// here, so exec is allowed).
	Data = "/var"
)

// Files on STATE. All root-only (0600).
const (
	// Config holds the machine's configurations (package documents).
	Config = State + "/config"
	// MachineKey and MachineCert are the machine's own identity: made on first boot, signed by the
	// cluster's machine CA once there is a configuration, self-signed before.
	MachineKey  = State + "/pki/machine.key"
	MachineCert = State + "/pki/machine.crt"
	// PairedCA is the CA (PEM) of the operator that the machine was paired with. It is missing
	// where the image or a configuration has named one first.
	PairedCA = State + "/pki/operator.crt"
	// Audit holds the record of calls (package audit).
	Audit = State + "/audit"
	// AuditRefused holds the record of calls that came to nothing; AuditInProgress those that go on
	// (audit.Journal).
	AuditRefused    = State + "/audit-refused"
	AuditInProgress = State + "/audit-going"
	// LogShipping holds what each receiver has of the record of calls (package ship), a file for each.
	LogShipping = State + "/shipping"
	// TrustLedger holds the client certificates that were issued and revoked (package trust), JSON.
	TrustLedger = State + "/trust/book.json"
	// Membership holds the certificates that a worker was given, with their keys (machined's
	// membership.go), JSON.
	Membership = State + "/membership.json"
	// TimeFloor is a time that has passed for certain (package timesync): the clock never starts
	// before it.
	TimeFloor = State + "/time"
	// SuspendedObjects holds the Kubernetes objects that an administrator has taken out (machined's
	// suspend.go), a JSON file for each.
	SuspendedObjects = State + "/suspended"
	// Upgrade holds the record of the last upgrade, and the configuration that each version was
	// good with.
	Upgrade = State + "/upgrade"
)

// Folders on DATA.
const (
	EtcdData = Data + "/lib/etcd" // owner UserAPI, 0700
	// owner UserAPI, 0700: what etcd held before the last upgrade
	EtcdSnapshots  = Data + "/lib/etcd-kept"
	ContainerdData = Data + "/lib/containerd" // root
	KubeletData    = Data + "/lib/kubelet"    // root
	PodLogs        = Data + "/log/pods"       // root
	// root, 0700: the volumes of claims (orchestrator/localvolumes)
	LocalVolumes = Data + "/lib/local-volumes"
	// root and group UserControllers, 0750: the artefacts of add-ons (package artifact)
	Addons = Data + "/lib/addons"
	// ExternalCNIPlugins is where a pod network that is not ours writes its plugins: root.
	// /opt/cni/bin is a symbolic link to it.
	ExternalCNIPlugins = Data + "/lib/cni/bin"
	// Folders that pods with hostPath volumes expect to be able to write to: root, 0755. /opt,
	// /mnt, /srv, /home and /etc/kubernetes in the root are symbolic links to them.
	HostOpt        = Data + "/opt"
	HostMnt        = Data + "/mnt"
	HostSrv        = Data + "/srv"
	HostHome       = Data + "/home"
	HostKubernetes = Data + "/lib/kubernetes"
	PodNetwork     = Data + "/lib/podnetwork" // root, 0700: the node's WireGuard key
	// root, 0700: what pods take to start without an API server (orchestrator/offlineapi)
	OfflineAPI = Data + "/lib/stand-in"
	// root, 0700: the upgrade bundle that is received, or was received last
	Bundle   = Data + "/lib/bundle"
	AuditLog = Data + "/log/kube-audit" // owner UserAPI, 0700
	// root, 0700: what the kernel wrote in this start and the one before (package bootlog)
	KernelLog = Data + "/log/kernel"
)

// Sockets and files that live until power-off, on the tmpfs /run.
const (
	Run = "/run/orlop"
	// MachinedSocket is machined's gRPC socket; it belongs to root:apid, mode 0660.
	MachinedSocket = Run + "/machined.sock"
	// System holds the parts of the system that an installation writes to a disk, on a machine that
	// runs from memory (package medium): read-only, and in memory once. It is missing on an
	// installed machine.
	System       = Run + "/system"
	SystemRoot   = System + "/root.img"            // the sealed root: all bytes of a root partition
	SystemUKI    = System + "/orlop.efi"           // the boot image that finds this root on a disk
	SystemLoader = System + "/systemd-bootx64.efi" // the boot loader
	// SystemStatement is the version's signed statement (package bundle). It is missing where the
	// image was built without a bundle.
	SystemStatement = System + "/statement.json"
	// AuditInMemory is Audit on a machine without a STATE.
	AuditInMemory = Run + "/audit"
	// PairedCAInMemory is PairedCA on a machine without a STATE.
	PairedCAInMemory = Run + "/operator.crt"
	// Profiles holds a socket for each process that gives profiles of itself (package profile).
	// Only root enters it.
	Profiles = Run + "/profile"
	// ESP is where the ESP is mounted while it is looked at.
	ESP = Run + "/esp"
	// ApidDir is apid's own folder: server certificate, key and the operators' CAs (written by
	// machined, reloaded by apid when they change).
	ApidDir          = Run + "/apid"
	ContainerdSocket = "/run/containerd/containerd.sock"
	ContainerdConfig = Run + "/containerd/config.toml"
	ContainerdHosts  = Run + "/containerd/hosts" // root, 0700: how registries are asked
	// /etc/cni/net.d in the root is a symbolic link to it
	CNIConfig = Run + "/cni/net.d"
	// /etc/resolv.conf in the root is a symbolic link to it
	ResolvConf = Run + "/etc/resolv.conf"
	Hosts      = Run + "/etc/hosts"      // likewise
	Hostname   = Run + "/etc/hostname"   // likewise
	MachineID  = Run + "/etc/machine-id" // likewise
)

// Folders of the orchestrator's three processes: each holds the process's credentials (written by
// machined, owned by the process's user, 0700) and what the process itself writes at run time
// (kubeconfigs, sockets).
const (
	// NodeSpec is the JSON form of pkg/nodespec.Spec, world-readable, no secrets.
	NodeSpec        = Run + "/kube/spec.json"
	KubeAPI         = Run + "/kube/api"
	KubeControllers = Run + "/kube/controllers"
	KubeNode        = Run + "/kube/node"
)

// User and group ids of the processes that do not run as root. They stand in the root's /etc/passwd
// and /etc/group.
const (
	UserApid        = 100
	UserAPI         = 101
	UserControllers = 102
	UserProbe       = 103 // of the process that examines foreign disks
)

// Ports that answer on the machine's addresses, beside etcd's (pkg/etcdjoin). Everything else listens
// on loopback or a Unix socket.
const (
	PortApid       = 50000
	PortKubernetes = 6443
	PortKubelet    = 10250
	PortMetrics    = 10261 // of resource metrics, for the other control-plane machines
	PortWireGuard  = 51820 // UDP: pods of other machines
	// UDP: the same; not RFC 7348's 4789, which networks of virtual machines use below us
	PortVXLAN = 8472
)

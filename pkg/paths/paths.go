// Package paths defines every fixed path of the running system once, with its content and its
// owner. It imports nothing.
//
// A path below State or Data is a contract: the released versions read and write it, and a rollback
// runs them again (docs/decisions/0092-stored-formats.md). Some stored names are therefore older
// than the names of their constants: etcd-kept (snapshots), stand-in (offline API server), shipping
// (log shipping) and trust/book.json (ledger).
package paths

// The executables in the read-only root.
const (
	Machined     = "/usr/bin/machined"
	Diskprobe    = "/usr/bin/diskprobe" // machined under another name
	Bootcheck    = "/usr/bin/bootcheck" // the same
	Attester     = "/usr/bin/attester"  // likewise
	Metricsd     = "/usr/bin/metricsd"  // likewise
	Podlogd      = "/usr/bin/podlogd"   // likewise
	Orchestrator = "/usr/bin/orchestrator"
	Containerd   = "/usr/bin/containerd"
	Runc         = "/usr/bin/runc"
	CNIPlugins   = "/usr/libexec/cni"
	Mke2fs       = "/usr/sbin/mke2fs"
	E2fsck       = "/usr/sbin/e2fsck"
	MkfsFat      = "/usr/sbin/mkfs.fat"
	Nft          = "/usr/sbin/nft"
	// Modules holds a directory per kernel release, in the layout of depmod.
	Modules = "/usr/lib/modules"
	// Images holds the OCI archives that are part of the system (the pause image), a file per
	// image.
	Images = "/usr/share/orlop/images"
	// BuildInfo is a JSON file written by the imager: version, build time, root hash inputs
	// (pkg/buildinfo.Release).
	BuildInfo = "/usr/share/orlop/release.json"
	// OperatorCA is the CA certificate (PEM) of the operator of the image. The file is missing in a
	// generic image.
	OperatorCA = "/usr/share/orlop/operator-ca.crt"
	// ReleaseKeys are the public keys (PEM, Ed25519) that may sign the versions after this one. The
	// file is missing in an image that cannot be upgraded.
	ReleaseKeys = "/usr/share/orlop/release-keys.pem"
	// ExtensionKeys are the public keys (PEM, Ed25519) that may sign extensions besides the release
	// keys; usually missing.
	ExtensionKeys = "/usr/share/orlop/extension-keys.pem"
	// SBOM is the bill of materials of the image (SPDX 2.3, JSON), as the imager wrote it. The
	// signed statement of the version (package bundle) has its digest.
	SBOM = "/usr/share/orlop/sbom.spdx.json"
	// PublicCAs are the public CAs (PEM).
	PublicCAs = "/etc/ssl/certs/ca-certificates.crt"
	// EmbeddedConfig is the configuration of the image; usually missing.
	EmbeddedConfig = "/usr/share/orlop/config.yaml"
)

// Mount points of the writable partitions.
const (
	// State is the mount point of the STATE partition: nosuid, nodev, noexec.
	State = "/state"
	// Data is the mount point of the DATA partition: nosuid, nodev. It allows exec, because it
	// holds the root file systems of containers.
	Data = "/var"
)

// Files on STATE. Only root has access (0600).
const (
	// Config holds the configurations of the machine (package configstore).
	Config = State + "/config"
	// MachineKey and MachineCert are the machine's own identity, created on the first boot. The
	// cluster's machine CA signs the certificate once there is a configuration; before that it is
	// self-signed.
	MachineKey  = State + "/pki/machine.key"
	MachineCert = State + "/pki/machine.crt"
	// PairedCA is the CA (PEM) of the operator that claimed the machine by pairing. It is missing
	// if the image or a configuration named a CA first.
	PairedCA = State + "/pki/operator.crt"
	// Audit holds record `changes` of the audit log (package audit).
	Audit = State + "/audit"
	// AuditRefused holds record `refused` of the audit log. AuditInProgress holds the calls in
	// progress (audit.Journal).
	AuditRefused    = State + "/audit-refused"
	AuditInProgress = State + "/audit-in-progress"
	// LogShipping holds the position of each receiver in the audit log (package logship), a file
	// per receiver.
	LogShipping = State + "/shipping"
	// TrustLedger holds the issued and revoked client certificates and the membership (package
	// trust), JSON.
	TrustLedger = State + "/trust/book.json"
	// Membership holds the certificates that a worker has received, with their keys (package
	// membership), JSON.
	Membership = State + "/membership.json"
	// Leases holds the leases of DHCPv4 and DHCPv6 (package network), a JSON file of each per MAC,
	// and the machine's identifier for DHCPv6.
	Leases = State + "/dhcp"
	// LLDPLabels holds the last labels of the Node from LLDP (package lldp), JSON.
	LLDPLabels = State + "/lldp-labels.json"
	// TimeFloor is a time that has certainly passed (package timesync): the clock never starts
	// before it.
	TimeFloor = State + "/time-floor"
	// SuspendedObjects holds the Kubernetes objects that an admin has suspended (machined's
	// suspend.go), a JSON file per object.
	SuspendedObjects = State + "/suspended"
	// Turn holds the turn of the control plane while this machine has it (machined/disruption),
	// JSON.
	Turn = State + "/turn.json"
	// Volumes holds the record of the volumes that this machine has created (machined/volumes),
	// JSON.
	Volumes = State + "/volumes.json"
	// Wear holds the numbers of errors of disks at their last reading (machined/wear), JSON.
	Wear = State + "/wear.json"
	// Upgrade holds the record of the last upgrade, and the configuration that each version was
	// committed with.
	Upgrade = State + "/upgrade"
)

// Directories on DATA.
const (
	EtcdData = Data + "/lib/etcd" // owner UserAPI, 0700
	// owner UserAPI, 0700: savepoints and snapshots of etcd
	EtcdSnapshots = Data + "/lib/etcd-kept"
	// owner UserAPI, 0755: the level of the cluster (orchestrator/level)
	Level          = Data + "/lib/level"
	ContainerdData = Data + "/lib/containerd" // root
	KubeletData    = Data + "/lib/kubelet"    // root
	PodLogs        = Data + "/log/pods"       // root
	// root, 0700: the persistent volumes (orchestrator/localvolumes)
	LocalVolumes = Data + "/lib/local-volumes"
	// root and group UserControllers, 0750: the artifacts of add-ons (package artifact)
	Addons = Data + "/lib/addons"
	// ExternalCNIPlugins is the directory to which an external pod network writes its plugins:
	// root. /opt/cni/bin is a symbolic link to it.
	ExternalCNIPlugins = Data + "/lib/cni/bin"
	// Directories that pods with hostPath volumes expect to be writable: root, 0755. /opt, /mnt,
	// /srv, /home and /etc/kubernetes in the root are symbolic links to them.
	HostOpt        = Data + "/opt"
	HostMnt        = Data + "/mnt"
	HostSrv        = Data + "/srv"
	HostHome       = Data + "/home"
	HostKubernetes = Data + "/lib/kubernetes"
	PodNetwork     = Data + "/lib/podnetwork" // root, 0700: the node's WireGuard key
	// root, 0700: the objects that pods need to start without an API server
	// (orchestrator/offlineapi)
	OfflineAPI = Data + "/lib/stand-in"
	// root, 0700: the positions of the receivers in the logs of pods (machined/logship), a JSON
	// file per receiver
	PodLogPositions = Data + "/lib/pod-log-positions"
	// root, 0700: the upgrade bundle of the present or the last transfer
	Bundle = Data + "/lib/bundle"
	// root, 0700: the extensions (machined/extensions), a file per manifest, statement and image
	Extensions = Data + "/lib/extensions"
	// root, 0755: a directory per service of an extension that requests one; owner the service's
	// user
	ExtensionState = Data + "/lib/extension-state"
	AuditLog       = Data + "/log/kube-audit" // owner UserAPI, 0700
	// root, 0700: the kernel log of this boot and the previous boot (machined/debug/bootlog)
	KernelLog = Data + "/log/kernel"
)

// Sockets and files on the tmpfs /run, which exist until power-off.
const (
	Run = "/run/orlop"
	// MachinedSocket is machined's gRPC socket; its owner is root:apid, mode 0660.
	MachinedSocket = Run + "/machined.sock"
	// ObjectSocket is machined's gRPC socket for the machine's own object of Kubernetes; only root
	// has access.
	ObjectSocket = Run + "/machine-object.sock"
	// ForwarderSocket is the forwarder of the API server to servers outside the cluster (package
	// egress); its owner is root:UserAPI, mode 0660. It exists with a proxy only.
	ForwarderSocket = Run + "/egress.sock"
	// VolumeMounts holds the mount points of the volumes of the configuration (machined/volumes), a
	// directory per volume.
	VolumeMounts = Run + "/volumes"
	// System holds the parts of the system that an installation writes to a disk, on a machine that
	// runs from memory (package bootenv). It is read-only, and occupies memory only once. It is
	// missing on an installed machine.
	System       = Run + "/system"
	SystemRoot   = System + "/root.img"            // the sealed root: all bytes of a root partition
	SystemUKI    = System + "/orlop.efi"           // the UKI that finds this root on a disk
	SystemLoader = System + "/systemd-bootx64.efi" // the boot loader
	// SystemLoaderConfig is the configuration of a boot loader that enrolls keys for Secure Boot;
	// their files are beside it (esp.KeyFiles). It is missing if the image enrolls no keys.
	SystemLoaderConfig = System + "/loader.conf"
	// SystemStatement is the version's signed statement (package bundle). It is missing if the
	// image was built without a bundle.
	SystemStatement = System + "/statement.json"
	// AuditInMemory replaces Audit on a machine without a STATE partition.
	AuditInMemory = Run + "/audit"
	// PairedCAInMemory replaces PairedCA on a machine without a STATE partition.
	PairedCAInMemory = Run + "/operator.crt"
	// ExtensionMounts holds the mounts of the active extensions.
	ExtensionMounts = Run + "/extensions"
	// Profiles holds the profiling sockets of the processes (package profile). Only root has access
	// to it.
	Profiles = Run + "/profile"
	// MetricsSockets holds the sockets of the processes for their metrics (package exposition); the
	// owner of each is root:UserMetrics, mode 0660.
	MetricsSockets = Run + "/metrics"
	// MetricsdDir is metricsd's own directory: server certificate, key, the CAs of its callers and
	// its settings.
	MetricsdDir = Run + "/metricsd"
	// PodLogsSocket is machined's socket for podlogd; its owner is root:UserPodLogs, mode 0660. It
	// exists with a receiver for the logs of pods only.
	PodLogsSocket = Run + "/pod-logs.sock"
	// ESP is the mount point of the ESP while machined uses it.
	ESP = Run + "/esp"
	// ApidDir is apid's own directory: server certificate, key and the operator CAs (machined
	// writes them, apid reloads them when they change).
	ApidDir          = Run + "/apid"
	ContainerdSocket = "/run/containerd/containerd.sock"
	ContainerdConfig = Run + "/containerd/config.toml"
	ContainerdHosts  = Run + "/containerd/hosts" // root, 0700: how containerd reaches registries
	// /etc/cni/net.d in the root is a symbolic link to it
	CNIConfig = Run + "/cni/net.d"
	// /etc/resolv.conf in the root is a symbolic link to it
	ResolvConf = Run + "/etc/resolv.conf"
	Hosts      = Run + "/etc/hosts"      // likewise
	Hostname   = Run + "/etc/hostname"   // likewise
	MachineID  = Run + "/etc/machine-id" // likewise
)

// Directories of the orchestrator's three processes. Each holds the credentials of the process
// (written by machined, owned by the user of the process, 0700) and its run-time files
// (kubeconfigs, sockets).
const (
	// NodeSpec is the JSON form of pkg/nodespec.Spec, world-readable, no secrets.
	NodeSpec        = Run + "/kube/spec.json"
	KubeAPI         = Run + "/kube/api"
	KubeControllers = Run + "/kube/controllers"
	KubeNode        = Run + "/kube/node"
)

// User and group IDs of the processes that do not run as root. The root's /etc/passwd and
// /etc/group contain them.
const (
	UserApid        = 100
	UserAPI         = 101
	UserControllers = 102
	UserProbe       = 103 // of the process that parses foreign disks
	UserMetrics     = 104 // of the process that serves the metrics of the machine
	UserPodLogs     = 105 // of the process that reads the logs of pods
)

// Ports on the addresses of the machine, in addition to etcd's (pkg/etcdjoin). All other listeners
// use loopback or a Unix socket.
const (
	PortApid       = 50000
	PortKubernetes = 6443
	PortKubelet    = 10250
	PortMetrics    = 10261 // resource metrics for the other control-plane machines
	PortMetricsd   = 10262 // metrics of the machine, with Machine.spec.metrics
	PortWireGuard  = 51820 // UDP: pods of other machines
	// UDP: the same; not 4789 of RFC 7348, which networks of virtual machines use below Orlop OS
	PortVXLAN = 8472
)

// PortContainerd is the port of containerd's metrics on loopback, with Machine.spec.metrics:
// containerd serves them on no Unix socket.
const PortContainerd = 10263

// Package paths defines every fixed path of the running system, with its content and its owner. It
// imports nothing.
//
// A path below State or Data is part of the stored format: the released versions read and write it,
// and a rollback can start such a version again (docs/decisions/0092-stored-formats.md). Therefore
// some files have an older name than their constant: etcd-kept (snapshots), stand-in (offline API
// server), shipping (log shipping) and trust/book.json (ledger).
package paths

// Executables in the read-only root.
const (
	Machined     = "/usr/bin/machined"
	Diskprobe    = "/usr/bin/diskprobe" // machined under another name
	Bootcheck    = "/usr/bin/bootcheck" // machined under another name
	Attester     = "/usr/bin/attester"  // machined under another name
	Sealer       = "/usr/bin/sealer"    // machined under another name
	Metricsd     = "/usr/bin/metricsd"  // machined under another name
	Podlogd      = "/usr/bin/podlogd"   // machined under another name
	Orchestrator = "/usr/bin/orchestrator"
	Containerd   = "/usr/bin/containerd"
	Runc         = "/usr/bin/runc"
	CNIPlugins   = "/usr/libexec/cni"
	Mke2fs       = "/usr/sbin/mke2fs"
	E2fsck       = "/usr/sbin/e2fsck"
	Cryptsetup   = "/usr/sbin/cryptsetup"
	MkfsFat      = "/usr/sbin/mkfs.fat"
	Nft          = "/usr/sbin/nft"
	// Modules holds the kernel modules: a directory per kernel release, in the layout of depmod.
	Modules = "/usr/lib/modules"
	// Images holds the container images that are part of the system (the pause image): an OCI
	// archive per image.
	Images = "/usr/share/orlop/images"
	// BuildInfo is a JSON file that the imager writes: the version, the build time, and the inputs
	// of the root hash (pkg/buildinfo.Release).
	BuildInfo = "/usr/share/orlop/release.json"
	// OperatorCA is the CA certificate (PEM) of the operator for whom the image was built. A
	// generic image does not have this file.
	OperatorCA = "/usr/share/orlop/operator-ca.crt"
	// ReleaseKeys are the public keys (PEM, Ed25519) that may sign newer versions. An image that
	// cannot be upgraded does not have this file.
	ReleaseKeys = "/usr/share/orlop/release-keys.pem"
	// ExtensionKeys are further public keys (PEM, Ed25519) that may sign extensions. The release
	// keys may sign extensions, too. Most images do not have this file.
	ExtensionKeys = "/usr/share/orlop/extension-keys.pem"
	// PCRKey is the public key (PEM) by which the TPM of a machine accepts a boot image: section
	// .pcrpkey of the boot image. An image that was built without a key for Secure Boot does not
	// have this file.
	PCRKey = "/usr/share/orlop/pcr-key.pem"
	// DiskRecipients are the public keys (age, one per line) to which a machine encrypts the
	// recovery keys of STATE and DATA at its first boot. Without the file, both are not encrypted
	// unless EmbeddedConfig says so.
	DiskRecipients = "/usr/share/orlop/disk-recipients"
	// SBOM is the bill of materials of the image (SPDX 2.3, JSON), which the imager writes. The
	// signed statement of the version (package bundle) contains its digest.
	SBOM = "/usr/share/orlop/sbom.spdx.json"
	// PublicCAs are the certificates (PEM) of the public CAs.
	PublicCAs = "/etc/ssl/certs/ca-certificates.crt"
	// EmbeddedConfig is the configuration in the image. Most images do not have this file.
	EmbeddedConfig = "/usr/share/orlop/config.yaml"
)

// Mount points of the writable partitions.
const (
	// State is the mount point of the STATE partition: nosuid, nodev, noexec.
	State = "/state"
	// Data is the mount point of the DATA partition: nosuid, nodev. It permits exec, because it
	// holds the root file systems of containers.
	Data = "/var"
)

// Files and directories on STATE. Only root has access (0600).
const (
	// Config holds the configurations of the machine (package configstore).
	Config = State + "/config"
	// MachineKey and MachineCert are the key and the certificate of the machine. The machine
	// creates both at its first boot, with a self-signed certificate. When it has a configuration,
	// the machine CA of the cluster signs the certificate.
	MachineKey  = State + "/pki/machine.key"
	MachineCert = State + "/pki/machine.crt"
	// PairedCA is the certificate (PEM) of the operator CA that claimed the machine by pairing. The
	// file does not exist if the machine got its operator CA from the image or from a
	// configuration.
	PairedCA = State + "/pki/operator.crt"
	// Audit holds record `changes` of the audit log (package audit).
	Audit = State + "/audit"
	// AuditRefused holds record `refused` of the audit log. AuditInProgress holds the calls that
	// are in progress (audit.Journal).
	AuditRefused    = State + "/audit-refused"
	AuditInProgress = State + "/audit-in-progress"
	// LogShipping holds the position of each receiver in the audit log (package logship): a file
	// per receiver.
	LogShipping = State + "/shipping"
	// TrustLedger holds the ledger in JSON: the issued and revoked client certificates, and the
	// membership (package trust).
	TrustLedger = State + "/trust/book.json"
	// Membership holds the certificates that a worker has received, with their keys, in JSON
	// (package membership). The membership of the cluster is in TrustLedger.
	Membership = State + "/membership.json"
	// Leases holds the leases of DHCPv4 and DHCPv6 (package network): a JSON file per protocol and
	// MAC. It also holds the identifier of the machine for DHCPv6.
	Leases = State + "/dhcp"
	// LLDPLabels holds the labels that the machine last derived from LLDP for its Node (package
	// lldp), in JSON.
	LLDPLabels = State + "/lldp-labels.json"
	// UsedApprovals holds the approvals of calls that were used on this machine, in JSON (package
	// approval).
	UsedApprovals = State + "/approvals/used.json"
	// TimeFloor holds a time that has certainly passed (package timesync). At boot, the machine
	// sets its clock to this time if the clock is before it.
	TimeFloor = State + "/time-floor"
	// SuspendedObjects holds the Kubernetes objects that an admin has suspended (machined/suspend):
	// a JSON file per object.
	SuspendedObjects = State + "/suspended"
	// Turn holds the turn of the control plane while this machine has the turn
	// (machined/disruption), in JSON.
	Turn = State + "/turn.json"
	// Volumes holds the list of the volumes that this machine has created (machined/volumes), in
	// JSON.
	Volumes = State + "/volumes.json"
	// Wear holds the error counters of the disks at their last reading (machined/wear), in JSON.
	Wear = State + "/wear.json"
	// DiskBinding holds the secret that binds DATA to this STATE (diskkey.Binding), in JSON. It
	// exists if STATE is encrypted.
	DiskBinding = State + "/disk-binding.json"
	// Upgrade holds the record of the last upgrade. For each committed version, it also holds the
	// configuration of the machine at the commit.
	Upgrade = State + "/upgrade"
)

// Directories on DATA, with their owner and mode.
const (
	EtcdData = Data + "/lib/etcd" // owner UserAPI, 0700
	// owner UserAPI, 0700: savepoints and snapshots of the etcd data
	EtcdSnapshots = Data + "/lib/etcd-kept"
	// owner UserAPI, 0755: the level of the cluster (orchestrator/level)
	Level          = Data + "/lib/level"
	ContainerdData = Data + "/lib/containerd" // root
	KubeletData    = Data + "/lib/kubelet"    // root
	PodLogs        = Data + "/log/pods"       // root
	// root, 0700: the PersistentVolumes (orchestrator/localvolumes)
	LocalVolumes = Data + "/lib/local-volumes"
	// root and group UserControllers, 0750: the artifacts of add-ons (package artifact)
	Addons = Data + "/lib/addons"
	// ExternalCNIPlugins is the directory for the plugins of an external pod network. Its owner is
	// root. /opt/cni/bin is a symbolic link to it.
	ExternalCNIPlugins = Data + "/lib/cni/bin"
	// The next five directories (root, 0755) are for pods that write to hostPath volumes. In the
	// root, /opt, /mnt, /srv, /home and /etc/kubernetes are symbolic links to them.
	HostOpt        = Data + "/opt"
	HostMnt        = Data + "/mnt"
	HostSrv        = Data + "/srv"
	HostHome       = Data + "/home"
	HostKubernetes = Data + "/lib/kubernetes"
	PodNetwork     = Data + "/lib/podnetwork" // root, 0700: the node's WireGuard key
	// root, 0700: the objects that pods need for their start without an API server
	// (orchestrator/offlineapi)
	OfflineAPI = Data + "/lib/stand-in"
	// root, 0700: the positions of the receivers in the logs of pods (machined/logship): a JSON
	// file per receiver
	PodLogPositions = Data + "/lib/pod-log-positions"
	// root, 0700: the bundle of the current or the last transfer
	Bundle = Data + "/lib/bundle"
	// root, 0700: the extensions (machined/extensions): a file per manifest, statement and image
	Extensions = Data + "/lib/extensions"
	// root, 0755: a directory for each service with extension.Service.State; the user of the
	// service owns the directory
	ExtensionState = Data + "/lib/extension-state"
	AuditLog       = Data + "/log/kube-audit" // owner UserAPI, 0700
	// root, 0700: the kernel log of this boot and of the previous boot (machined/debug/bootlog)
	KernelLog = Data + "/log/kernel"
)

// Sockets, files and directories on the tmpfs /run. They exist until power-off.
const (
	Run = "/run/orlop"
	// MachinedSocket is the gRPC socket of machined: root:apid, mode 0660.
	MachinedSocket = Run + "/machined.sock"
	// ObjectSocket is the gRPC socket of machined for the machine's own object in Kubernetes. Only
	// root has access.
	ObjectSocket = Run + "/machine-object.sock"
	// ForwarderSocket is the socket of the forwarder for the API server (package egress):
	// root:UserAPI, mode 0660. It exists only if the configuration has a proxy.
	ForwarderSocket = Run + "/egress.sock"
	// VolumeMounts holds the mount points of the configured volumes (machined/volumes): a directory
	// per volume.
	VolumeMounts = Run + "/volumes"
	// System holds the parts of the system that an installation writes to a disk. It exists only on
	// a machine that runs from memory (package bootenv). It is a read-only bind mount of the files
	// from which the machine runs, so the files take up memory only once.
	System       = Run + "/system"
	SystemRoot   = System + "/root.img"            // all bytes of a root partition
	SystemUKI    = System + "/orlop.efi"           // the UKI that boots this root from a disk
	SystemLoader = System + "/systemd-bootx64.efi" // the boot loader
	// SystemLoaderConfig is the configuration of a boot loader that enrolls keys for Secure Boot.
	// The keys are files beside it (esp.KeyFiles). It does not exist if the image enrolls no keys.
	SystemLoaderConfig = System + "/loader.conf"
	// SystemStatement is the signed statement of the version (package bundle). It does not exist if
	// the image was built without a bundle.
	SystemStatement = System + "/statement.json"
	// PCRSignatures is the section .pcrsig of the running boot image, which init writes. It does
	// not exist if the boot image has no such section.
	PCRSignatures = Run + "/pcr-signatures.json"
	// AuditInMemory replaces Audit on a machine without a STATE partition.
	AuditInMemory = Run + "/audit"
	// PairedCAInMemory replaces PairedCA on a machine without a STATE partition.
	PairedCAInMemory = Run + "/operator.crt"
	// ExtensionMounts holds the mount points of the active extensions.
	ExtensionMounts = Run + "/extensions"
	// Profiles holds the sockets on which processes serve profiles (package profile). Only root has
	// access to the directory.
	Profiles = Run + "/profile"
	// MetricsSockets holds the sockets on which processes serve metrics (package exposition): each
	// is root:UserMetrics, mode 0660.
	MetricsSockets = Run + "/metrics"
	// MetricsdDir is the directory of metricsd: the serving certificate, its key, the CAs of
	// clients, and the settings.
	MetricsdDir = Run + "/metricsd"
	// PodLogsSocket is the socket of machined for podlogd: root:UserPodLogs, mode 0660. It exists
	// only if the configuration has a receiver for the logs of pods.
	PodLogsSocket = Run + "/pod-logs.sock"
	// ESP is the mount point of the ESP, which is mounted only while machined uses it.
	ESP = Run + "/esp"
	// ApidDir is the directory of apid: the serving certificate, its key, and the operator CAs.
	// machined writes the files, and apid reloads them when they change.
	ApidDir          = Run + "/apid"
	ContainerdSocket = "/run/containerd/containerd.sock"
	ContainerdConfig = Run + "/containerd/config.toml"
	ContainerdHosts  = Run + "/containerd/hosts" // root, 0700: addresses of the registries
	// /etc/cni/net.d in the root is a symbolic link to this directory
	CNIConfig = Run + "/cni/net.d"
	// In the root, /etc/resolv.conf, /etc/hosts, /etc/hostname and /etc/machine-id are symbolic
	// links to the next four files.
	ResolvConf = Run + "/etc/resolv.conf"
	Hosts      = Run + "/etc/hosts"
	Hostname   = Run + "/etc/hostname"
	MachineID  = Run + "/etc/machine-id"
)

// Directories of the three processes of the orchestrator. Each holds the credentials of the
// process, and its run-time files (kubeconfigs, sockets). machined writes the credentials. The user
// of the process owns the directory, mode 0700.
const (
	// NodeSpec is a nodespec.Spec in JSON. All users can read it, because it contains no secrets.
	NodeSpec        = Run + "/kube/spec.json"
	KubeAPI         = Run + "/kube/api"
	KubeControllers = Run + "/kube/controllers"
	KubeNode        = Run + "/kube/node"
)

// User and group IDs of the processes that do not run as root, as in /etc/passwd and /etc/group of
// the root.
const (
	UserApid        = 100
	UserAPI         = 101
	UserControllers = 102
	UserProbe       = 103 // the process that parses foreign disks
	UserMetrics     = 104 // metricsd
	UserPodLogs     = 105 // podlogd
)

// Ports on the addresses of the machine, in addition to the ports of etcd (pkg/etcdjoin). All other
// listeners are on loopback or on a Unix socket.
const (
	PortApid       = 50000
	PortKubernetes = 6443
	PortKubelet    = 10250
	PortMetrics    = 10261 // resource metrics, for the other control-plane machines
	PortMetricsd   = 10262 // metrics of the machine; open with Machine.spec.metrics
	PortWireGuard  = 51820 // UDP: packets of pods between machines
	// UDP: packets of pods between machines; not port 4789 of RFC 7348, because the networks of
	// virtual machines below Orlop OS use that port
	PortVXLAN = 8472
)

// PortContainerd is the port of containerd's metrics on loopback, open with Machine.spec.metrics.
// containerd cannot serve its metrics on a Unix socket.
const PortContainerd = 10263

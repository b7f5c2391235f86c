// Package dirs contains the paths of the orchestrator's files: the fixed paths of pkg/paths in the
// running system, or the same directories below another root in a test. It creates no directory and
// opens no file.
package dirs

import (
	"path/filepath"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Dirs holds every path that the orchestrator uses. pkg/paths documents the meaning and the owner
// of each.
type Dirs struct {
	Spec          string // the description of the node, JSON (pkg/nodespec)
	API           string // credentials and runtime files of process "api"
	Controllers   string // credentials and runtime files of process "controllers"
	Node          string // credentials and runtime files of process "node"
	EtcdData      string
	EtcdSnapshots string
	Level         string // the level of the cluster
	AuditLog      string
	Kubelet       Kubelet
	LocalVolumes  string
	Addons        string // the artifacts of add-ons
	PodNetwork    string
	OfflineAPI    string // objects with which pods start without an API server
	CNI           CNI

	ContainerdSocket string
}

// Kubelet holds the paths of the data of the kubelet.
type Kubelet struct{ Data, PodLogs string }

// CNI holds the paths of the configuration and state of the network plugins.
type CNI struct {
	Config string
	// State holds the address reservations of host-local. It is on a tmpfs, because no pod, and so
	// no reservation, outlives a boot of the machine.
	State string
}

// System returns the paths of the running system.
func System() Dirs { return In("/") }

// In returns the paths of the running system below root.
func In(root string) Dirs {
	at := func(path string) string { return filepath.Join(root, path) }
	return Dirs{
		Spec:             at(paths.NodeSpec),
		API:              at(paths.KubeAPI),
		Controllers:      at(paths.KubeControllers),
		Node:             at(paths.KubeNode),
		EtcdData:         at(paths.EtcdData),
		EtcdSnapshots:    at(paths.EtcdSnapshots),
		Level:            at(paths.Level),
		AuditLog:         at(paths.AuditLog),
		Kubelet:          Kubelet{Data: at(paths.KubeletData), PodLogs: at(paths.PodLogs)},
		LocalVolumes:     at(paths.LocalVolumes),
		Addons:           at(paths.Addons),
		PodNetwork:       at(paths.PodNetwork),
		OfflineAPI:       at(paths.OfflineAPI),
		CNI:              CNI{Config: at(paths.CNIConfig), State: at(paths.Run + "/cni/addresses")},
		ContainerdSocket: at(paths.ContainerdSocket),
	}
}

// EtcdSocket is the socket of etcd for its only client, the API server of the same process. The
// directory has mode 0700.
func (d Dirs) EtcdSocket() string { return filepath.Join(d.API, "etcd.sock") }

// KMSSocket is the socket of the plugin of the key manager, for the API server of the same process.
func (d Dirs) KMSSocket() string { return filepath.Join(d.API, nodespec.KMSSocket) }

// Authorities is the file with the certificates that the components of process "node" trust for API
// servers, on a machine with a balancer (package offlineapi).
func (d Dirs) Authorities() string { return filepath.Join(d.Node, "api-servers.crt") }

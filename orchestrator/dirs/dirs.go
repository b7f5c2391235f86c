// Package dirs says where the orchestrator finds and puts its files: the fixed paths of pkg/paths
// in the running system, or the same folders below a root of their own in a test. It makes no
// folder and opens no file.
package dirs

import (
	"path/filepath"

	"github.com/orlop-os/orlop/pkg/paths"
)

// Dirs holds every path that the orchestrator uses. A path's meaning and owner stand in pkg/paths.
type Dirs struct {
	Spec          string // the node's description, JSON (pkg/nodespec)
	API           string // credentials and run time files of process "api"
	Controllers   string // the same of process "controllers"
	Node          string // the same of process "node"
	EtcdData      string
	EtcdSnapshots string
	AuditLog      string
	KubeletData   string
	LocalVolumes  string
	Addons        string // the artefacts of add-ons
	PodLogs       string
	PodNetwork    string
	OfflineAPI    string // what pods take to start without an API server
	CNIConfig     string
	// host-local's address book; on a tmpfs, because no pod outlives the machine's power
	CNIState         string
	CNIPlugins       string
	ContainerdSocket string
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
		AuditLog:         at(paths.AuditLog),
		KubeletData:      at(paths.KubeletData),
		LocalVolumes:     at(paths.LocalVolumes),
		Addons:           at(paths.Addons),
		PodLogs:          at(paths.PodLogs),
		PodNetwork:       at(paths.PodNetwork),
		OfflineAPI:       at(paths.OfflineAPI),
		CNIConfig:        at(paths.CNIConfig),
		CNIState:         at(paths.Run + "/cni/addresses"),
		CNIPlugins:       at(paths.CNIPlugins),
		ContainerdSocket: at(paths.ContainerdSocket),
	}
}

// EtcdSocket is where etcd serves its only client, the API server of the same process. The folder
// is 0700.
func (d Dirs) EtcdSocket() string { return filepath.Join(d.API, "etcd.sock") }

// Authorities is the file of those whom the components of process "node" believe to be an API
// server, where a balancer is (package standin).
func (d Dirs) Authorities() string { return filepath.Join(d.Node, "api-servers.crt") }

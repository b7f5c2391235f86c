// Package etcd runs etcd inside the process "api": upstream's server, embedded, with its configuration as data.
//
// Its only client is the API server of the same process, over a Unix socket in a folder that only the process's user
// may enter. There is no TCP port for clients. The port for other members listens on loopback as long as the control
// plane is one machine, and asks for a certificate of the etcd CA all the same, so that growing changes addresses only.
//
// Every write is on the disk before it is answered; nothing here turns that off. Old revisions are compacted by the API
// server, or when there is no more space by defragment (commands.go). Members are not this package's.
package etcd

import (
	"context"
	"fmt"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/layout"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "etcd"

// Component describes etcd without its Run function.
func Component(spec nodespec.Spec, dirs layout.Dirs) component.Component {
	file := configFile(spec, dirs)
	return component.Component{
		Process: component.API,
		Name:    Name,
		Args:    []string{"--config-file=" + file.Path},
		Files:   []component.File{file},
	}
}

// peerURL is where other members would reach this one.
const peerURL = "https://127.0.0.1:2380"

// configFile is etcd's own configuration file. The numbers:
//   - quota 4 GiB: half of what etcd calls its limit; a full database stops writes, it never fills the disk;
//   - a snapshot every 5000 entries, of which 1000 are kept: entries are held in memory, and there is no slow follower
//     to serve from them on one machine;
//   - health and metrics on a socket of their own, so that the one for requests speaks gRPC only, without guessing;
//   - the advertised client address is a form that etcd insists on: nothing listens there and nobody asks for it;
//   - requests that take longer than 300 ms are told about (the unit is nanoseconds; embedded, etcd has no default for
//     it and would tell about every request);
//   - pre-vote and strict reconfiguration: a member that comes back never disturbs a working cluster.
func configFile(spec nodespec.Spec, dirs layout.Dirs) component.File {
	at := func(name string) string { return filepath.Join(dirs.API, name) }
	content := fmt.Sprintf(`name: %[1]s
data-dir: %[2]s
listen-client-urls: unix://%[3]s
listen-client-http-urls: unix://%[3]s.http
advertise-client-urls: http://127.0.0.1:2379
listen-peer-urls: %[4]s
initial-advertise-peer-urls: %[4]s
initial-cluster: %[1]s=%[4]s
initial-cluster-token: %[5]s
initial-cluster-state: new
peer-transport-security:
  cert-file: %[6]s
  key-file: %[7]s
  trusted-ca-file: %[8]s
  client-cert-auth: true
tls-min-version: TLS1.3
quota-backend-bytes: 4294967296
snapshot-count: 5000
snapshot-catchup-entries: 1000
pre-vote: true
strict-reconfig-check: true
enable-grpc-gateway: false
feature-gates: InitialCorruptCheck=true,CompactHashCheck=true
logger: zap
log-level: warn
log-outputs: [stderr]
warning-unary-request-duration: 300000000
`, spec.NodeName, dirs.EtcdData, dirs.EtcdSocket(), peerURL, spec.Cluster, at(nodespec.EtcdPeerCert), at(nodespec.EtcdPeerKey), at(nodespec.EtcdCA))
	return component.File{Path: at("etcd.yaml"), Mode: 0o600, Content: content}
}

// Run serves with the configuration file until ctx is done. ready is called once, when the member answers. Before it starts,
// it sees to it that the data are this version's (keep.go).
func Run(ctx context.Context, file string, spec nodespec.Spec, dirs layout.Dirs, ready func()) error {
	if err := (keeper{dirs, spec}).settle(ownFormat()); err != nil {
		return err
	}
	config, err := embed.ConfigFromFile(file)
	if err != nil {
		return fmt.Errorf("%s: cannot use: %w", file, err)
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("%s: cannot start from: %w", config.Dir, err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
		if err := sign(ctx, v3client.New(server.Server), ownFormat()); err != nil {
			klog.Warningf("etcd: the data do not say who writes them: %v", err) // a full database takes nothing
		}
		ready()
	case err := <-server.Err():
		return err
	case <-ctx.Done():
		return nil
	}
	select {
	case err := <-server.Err():
		return err
	case <-server.Server.StopNotify():
		return fmt.Errorf("the server stopped by itself; the reason is in the log lines before this one")
	case <-ctx.Done():
		return nil
	}
}

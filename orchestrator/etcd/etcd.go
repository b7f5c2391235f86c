// Package etcd runs upstream's etcd server, embedded in the process "api", with its configuration
// as data.
//
// The client of each member is the API server of the same process. It connects over a Unix socket
// in a directory that only the user of the process may enter. If the configuration names
// control-plane machines, two TCP ports listen on the address of the machine: the peer port, and a
// client port for machines that join (discovery.go). Both require a certificate of the etcd CA. If
// the configuration names no control-plane machines, the peer port listens on loopback, and no TCP
// port is open for clients.
//
// etcd flushes every write to disk before it answers; nothing here turns that off. The API server
// compacts old revisions; when the database is full, defragment (commands.go) compacts them.
// Package etcdjoin decides which machine becomes a member.
package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component.
const Name = "etcd"

// Component describes etcd without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	file := configFile(spec, dirs)
	return component.Component{
		Process: component.API,
		Name:    Name,
		Args:    []string{"--config-file=" + file.Path},
		Files:   []component.File{file},
	}
}

// peerURL returns the URL of this member for its peers. Without other control-plane machines it is
// a loopback URL.
func peerURL(spec nodespec.Spec) string {
	if len(spec.ControlPlanes) == 0 {
		return etcdjoin.PeerURL(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	return etcdjoin.PeerURL(spec.OwnAddress())
}

// configFile returns the configuration file of etcd. The numbers and options:
//   - The quota is 4 GiB, half of the maximum that etcd suggests. A full database stops writes; it
//     never fills the disk.
//   - etcd takes a raft snapshot every 5000 entries and retains 1000 entries for slow followers.
//     The numbers are small, because etcd holds the entries in memory, and a single machine has no
//     follower.
//   - Health and metrics have a separate socket, so that the socket for requests speaks gRPC only
//     and does not have to detect the protocol.
//   - etcd requires an advertised client address. In a cluster with a single control-plane machine,
//     no client uses the address.
//   - A follower notices the loss of its leader after 1 to 2 seconds (etcd's default), before the
//     virtual address of the API moves to another machine (orchestrator/apivip). A request that a
//     member has forwarded to a lost leader fails after 5 seconds plus twice the election timeout
//     of 1 second.
//   - etcd accepts a certificate of the etcd CA from any client address.
//   - Several learners are permitted at once: machines that are switched on together all join, and
//     learners are not part of a quorum. The limit is the same on all machines: a member does not
//     start if it knows more learners than its own limit permits.
//   - etcd logs requests that take longer than 300 ms. The unit in the file is nanoseconds.
//     Embedded etcd has no default and would log every request.
//   - With pre-vote and the strict check of reconfigurations, a returning member never disturbs a
//     working cluster.
func configFile(spec nodespec.Spec, dirs dirs.Dirs) component.File {
	at := func(name string) string { return filepath.Join(dirs.API, name) }
	clients, advertised, security := "unix://"+dirs.EtcdSocket(), "http://127.0.0.1:2379", ""
	if len(spec.ControlPlanes) > 0 {
		advertised = clientURL(spec.OwnAddress())
		clients += "," + advertised
		security = fmt.Sprintf("client-transport-security:\n  cert-file: %s\n  key-file: %s\n  trusted-ca-file: %s\n  client-cert-auth: true\n  skip-client-san-verification: true\n",
			at(nodespec.EtcdPeerCert), at(nodespec.EtcdPeerKey), at(nodespec.EtcdCA))
	}
	content := fmt.Sprintf(`name: %[1]s
data-dir: %[2]s
listen-client-urls: %[9]s
listen-client-http-urls: unix://%[3]s.http
advertise-client-urls: %[10]s
listen-peer-urls: %[4]s
initial-advertise-peer-urls: %[4]s
initial-cluster: %[1]s=%[4]s
initial-cluster-token: %[5]s
initial-cluster-state: new
%[11]speer-transport-security:
  cert-file: %[6]s
  key-file: %[7]s
  trusted-ca-file: %[8]s
  client-cert-auth: true
  skip-client-san-verification: true
tls-min-version: TLS1.3
quota-backend-bytes: 4294967296
snapshot-count: 5000
snapshot-catchup-entries: 1000
max-learners: 16
pre-vote: true
strict-reconfig-check: true
enable-grpc-gateway: false
feature-gates: InitialCorruptCheck=true,CompactHashCheck=true
logger: zap
log-level: warn
log-outputs: [stderr]
warning-unary-request-duration: 300000000
`, spec.Node.Name, dirs.EtcdData, dirs.EtcdSocket(), peerURL(spec), spec.Cluster, at(nodespec.EtcdPeerCert), at(nodespec.EtcdPeerKey), at(nodespec.EtcdCA),
		clients, advertised, security)
	return component.File{Path: at("etcd.yaml"), Mode: 0o600, Content: content}
}

// Run serves with the configuration file until ctx is done. It reports the condition that it waits
// for. It calls the function ready once, when the member answers and has a vote. Before etcd
// starts, Run ensures that this version can serve the data (savepoint.go), and that a machine
// without data is a member of its cluster.
func Run(ctx context.Context, file string, spec nodespec.Spec, dirs dirs.Dirs, report func(why string), ready func()) error {
	k := localMember{dirs, spec}
	local, err := k.localVersion()
	if err != nil {
		return err
	}
	if err := k.savepoints().ensureFormat(ownFormat()); err != nil {
		return err
	}
	if err := k.dropUncommittedBootstrap(); err != nil {
		return err
	}
	server, err := start(ctx, file, k, report)
	if err != nil {
		return ignoreCanceled(ctx, err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
		if err := errors.Join(k.members().recovered(), k.removeMarker(bootstrapFile), k.savepoints().recordServed(ownFormat())); err != nil {
			return err
		}
		if err := becomeVoter(ctx, server.Server, peerURL(spec), report); err != nil {
			return ignoreCanceled(ctx, err)
		}
		if err := k.serveLevel(ctx, server.Server, local, report); err != nil {
			return ignoreCanceled(ctx, err)
		}
		ready()
	case err := <-server.Err():
		return stopReason(server, err)
	case <-server.Server.StoppingNotify():
		return errRemoved
	case <-ctx.Done():
		// Close would first wait until the server is ready, and for that it needs a quorum
		server.Server.HardStop()
		return nil
	}
	select {
	case err := <-server.Err():
		return stopReason(server, err)
	case <-server.Server.StoppingNotify():
		return errRemoved
	case <-ctx.Done():
		return nil
	}
}

// start starts the server after discovery. A joining machine must know all members at the moment of
// the start, so it joins again if another member was added or removed meanwhile. etcd stores each
// attempt for ever on the other members, so the delay between attempts grows up to maxBackoff.
func start(ctx context.Context, file string, k localMember, report func(why string)) (*embed.Etcd, error) {
	for attempts := 1; ; attempts++ {
		config, err := embed.ConfigFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: cannot use: %w", file, err)
		}
		if !k.hasData() {
			// The token is random. If two machines bootstrap the cluster, the two clusters have
			// different tokens, and neither accepts the members of the other. A joining machine
			// takes over the token of the existing cluster.
			config.InitialClusterToken += " " + rand.Text()
			if err := (joiner{k.spec, k.dirs, report}).discover(ctx, config); err != nil {
				return nil, err
			}
			if config.ClusterState == embed.ClusterStateFlagNew {
				if err := k.writeJSON(bootstrapFile, k.spec.Node.Name); err != nil {
					return nil, err
				}
			}
		} else if config.ForceNewCluster, err = k.members().forcesNewCluster(ctx); err != nil {
			return nil, err
		} else if err := k.members().checkCluster(ctx); err != nil {
			return nil, err
		}
		server, err := embed.StartEtcd(config)
		if err == nil {
			return server, nil
		}
		if k.hasData() || config.ClusterState != embed.ClusterStateFlagExisting {
			return nil, fmt.Errorf("%s: cannot start from: %w", config.Dir, err)
		}
		report("joins again: " + err.Error())
		if err := backoff.Sleep(ctx, backoff.Backoff{Min: retryInterval, Max: maxBackoff}.Delay(attempts)); err != nil {
			return nil, err
		}
	}
}

// stopReason returns the reason why a server has ended. If the server stops by itself, the errors
// of its listeners are not the reason.
func stopReason(server *embed.Etcd, err error) error {
	select {
	case <-server.Server.StoppingNotify():
		return errRemoved
	default:
		return err
	}
}

// ignoreCanceled returns err, or nil if ctx is done.
func ignoreCanceled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// errRemoved is returned when the server stops by itself. The only cause is the removal of its
// member: etcd's rafthttp reports no other error as critical.
var errRemoved = errors.New("this machine's member was removed from the cluster, and its data are stale; `orlopctl etcd rejoin` drops them and joins as a new member")

// becomeVoter promotes a learner to a voting member. The leader permits it when the learner has
// nearly all of the data. It also updates the peer address of the member in the cluster if the
// address has changed.
func becomeVoter(ctx context.Context, s *etcdserver.EtcdServer, url string, report func(why string)) error {
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	for reported := ""; ; {
		err := promote(ctx, s, url)
		if err == nil {
			return nil
		}
		if reported != err.Error() {
			reported = err.Error()
			report(reported)
		}
		select {
		case <-ticker.C:
		case <-s.StoppingNotify():
			return errRemoved
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func promote(ctx context.Context, s *etcdserver.EtcdServer, url string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if s.IsLearner() {
		if _, err := s.PromoteMember(ctx, uint64(s.MemberID())); err != nil {
			return fmt.Errorf("the member has no vote yet: %w", err)
		}
	}
	if m := s.Cluster().Member(s.MemberID()); m != nil && !slices.Equal(m.PeerURLs, []string{url}) {
		changed := membership.Member{ID: m.ID, RaftAttributes: membership.RaftAttributes{PeerURLs: []string{url}}}
		if _, err := s.UpdateMember(ctx, changed); err != nil {
			return fmt.Errorf("the other members do not know this member's address %s yet: %w", url, err)
		}
	}
	return nil
}

// serveLevel ensures that this process serves the level of the cluster, and holds the version of
// etcd at this level until the server stops. It determines the level before it calls recordFormat:
// the level may follow from the version that ran here before, and recordFormat replaces the record
// of that version.
func (l localMember) serveLevel(ctx context.Context, server *etcdserver.EtcdServer, local emulation.Minor, report func(why string)) error {
	c := v3client.New(server)
	if err := l.startLevel(ctx, c, local); err != nil {
		return err
	}
	h := &holder{server: server, started: l.spec.Level}
	if err := h.hold(ctx, report); err != nil {
		return err
	}
	go h.run(ctx)
	if err := recordFormat(ctx, c, ownFormat()); err != nil {
		// A full database accepts no writes.
		klog.Warningf("etcd: cannot record the format in the data: %v", err)
	}
	return nil
}

// Package etcd runs etcd inside the process "api": upstream's server, embedded, with its
// configuration as data.
//
// Each member's client is the API server of the same process, over a Unix socket in a folder that
// only the process's user may enter. Where the configuration names control-plane machines, the port
// for other members and one for those that join (meet.go) listen on the machine's address, and take
// holders of a certificate of the etcd CA. Otherwise the first listens on loopback, and there is no
// TCP port for clients.
//
// Every write is on the disk before it is answered; nothing here turns that off. Old revisions are
// compacted by the API server, or when there is no more space by defragment (commands.go). Who
// becomes a member is decided by package quorum.
package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
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

// peerURL is where other members reach this one, or would.
func peerURL(spec nodespec.Spec) string {
	if len(spec.ControlPlanes) == 0 {
		return etcdjoin.PeerURL(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	return etcdjoin.PeerURL(spec.OwnAddress())
}

// configFile is etcd's own configuration file. The numbers:
//   - quota 4 GiB: half of what etcd calls its limit; a full database stops writes, it never fills
//     the disk;
//   - a snapshot every 5000 entries, of which 1000 are kept: entries are held in memory, and there
//     is no slow follower
//     to serve from them on one machine;
//   - health and metrics on a socket of their own, so that the one for requests speaks gRPC only, without guessing;
//   - the advertised client address is a form that etcd insists on, and nobody asks for it;
//   - a leader is missed after 1 to 2 seconds, as etcd has it by default: before the address of the API moves (orchestrator/apivip).
//     A request that a member has passed on to a leader that is gone fails after 5 seconds and twice that second;
//   - who has a certificate of the etcd CA is believed whichever of its addresses it calls from;
//   - several learners at once: machines that are switched on together all join, and learners are not part of a quorum. The number is the same
//     whatever the configuration names: each member judges by its own which additions it knows of, and does not start with more than it allows;
//   - requests that take longer than 300 ms are told about (the unit is nanoseconds; embedded, etcd has no default for
//     it and would tell about every request);
//   - pre-vote and strict reconfiguration: a member that comes back never disturbs a working cluster.
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
`, spec.NodeName, dirs.EtcdData, dirs.EtcdSocket(), peerURL(spec), spec.Cluster, at(nodespec.EtcdPeerCert), at(nodespec.EtcdPeerKey), at(nodespec.EtcdCA),
		clients, advertised, security)
	return component.File{Path: at("etcd.yaml"), Mode: 0o600, Content: content}
}

// Run serves with the configuration file until ctx is done. tell says what it waits for; ready is
// called once, when the member answers and has a vote. Before it starts, it sees to it that the
// data are this version's (keep.go), and that without data it is one of its cluster.
func Run(ctx context.Context, file string, spec nodespec.Spec, dirs dirs.Dirs, tell func(why string), ready func()) error {
	nameServer()
	k := keeper{dirs, spec}
	if err := k.settle(ownFormat()); err != nil {
		return err
	}
	if err := k.dropUnbegun(); err != nil {
		return err
	}
	server, err := start(ctx, file, k, tell)
	if err != nil {
		return stopped(ctx, err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
		if err := errors.Join(k.goneAlone(), k.unmark(foundingFile), k.served(ownFormat())); err != nil {
			return err
		}
		if err := vote(ctx, server.Server, peerURL(spec), tell); err != nil {
			return stopped(ctx, err)
		}
		if err := sign(ctx, v3client.New(server.Server), ownFormat()); err != nil {
			// a full database takes nothing
			klog.Warningf("etcd: the data do not say who writes them: %v", err)
		}
		ready()
	case err := <-server.Err():
		return ended(server, err)
	case <-server.Server.StoppingNotify():
		return errRemoved
	case <-ctx.Done():
		server.Server.HardStop() // Close would wait for it to be ready first, which takes a quorum
		return nil
	}
	select {
	case err := <-server.Err():
		return ended(server, err)
	case <-server.Server.StoppingNotify():
		return errRemoved
	case <-ctx.Done():
		return nil
	}
}

// start starts the server, after it has become clear what it starts as. A machine that joins needs
// to know all members at that moment, so it joins anew when another one has come or gone meanwhile.
// Each time the others remember for good, so it rests longer and longer, up to askSeldom.
func start(ctx context.Context, file string, k keeper, tell func(why string)) (*embed.Etcd, error) {
	for rest := askEvery; ; rest = min(2*rest, askSeldom) {
		config, err := embed.ConfigFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: cannot use: %w", file, err)
		}
		if !k.hasData() {
			// A cluster that is begun twice is two, and neither takes the other's members for its
			// own. Who joins takes over the first one's.
			config.InitialClusterToken += " " + rand.Text()
			if err := (newcomer{k.spec, k.dirs, tell}).meet(ctx, config); err != nil {
				return nil, err
			}
			if config.ClusterState == embed.ClusterStateFlagNew {
				if err := k.note(foundingFile, k.spec.NodeName); err != nil {
					return nil, err
				}
			}
		} else if config.ForceNewCluster, err = k.goesAlone(ctx); err != nil {
			return nil, err
		} else if err := k.leftBehind(ctx); err != nil {
			return nil, err
		}
		server, err := embed.StartEtcd(config)
		if err == nil {
			return server, nil
		}
		if k.hasData() || config.ClusterState != embed.ClusterStateFlagExisting {
			return nil, fmt.Errorf("%s: cannot start from: %w", config.Dir, err)
		}
		tell("joins anew: " + err.Error())
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ended is why a server has ended: what its listeners say when it stops by itself is not the
// reason.
func ended(server *embed.Etcd, err error) error {
	select {
	case <-server.Server.StoppingNotify():
		return errRemoved
	default:
		return err
	}
}

// logFolder is etcd's write-ahead log in the data folder. While it is not there, the member has
// taken part in nothing.
const logFolder = member + "/wal"

func (k keeper) hasData() bool { return exists(filepath.Join(k.dirs.EtcdData, logFolder)) }

// foundingFile, beside the data, says that this machine begins a cluster, and that its etcd has not
// served it yet.
const foundingFile = "founding"

// dropUnbegun removes the data of a cluster that was to begin when the power was cut. Etcd writes
// down that the founder is a member after it has made its log; with a log that says nothing it
// would wait for ever for somebody to tell it. Nothing was agreed on by then, so nothing is lost.
func (k keeper) dropUnbegun() error {
	if !k.hasData() || !exists(k.at(foundingFile)) {
		return nil
	}
	log, err := wal.OpenForRead(silence, filepath.Join(k.dirs.EtcdData, logFolder), walpb.Snapshot{})
	if err != nil {
		return nil // it has gone on, or etcd says what is wrong
	}
	defer log.Close()
	if _, state, _, err := log.ReadAll(); err != nil || state.Commit > 0 {
		return nil
	}
	return k.dropData()
}

// dropData removes the data for good.
func (k keeper) dropData() error {
	if err := os.RemoveAll(filepath.Join(k.dirs.EtcdData, member)); err != nil {
		return fmt.Errorf("etcd: cannot drop the data: %w", err)
	}
	return durable.SyncDir(k.dirs.EtcdData)
}

// whose are the numbers of the member that the data are of, and of its cluster: each file of the
// log begins with them.
func (k keeper) whose() (number, cluster uint64, err error) {
	err = k.readLog(func(r walpb.Record) (more bool, err error) {
		if r.Type != wal.MetadataType {
			return true, nil
		}
		var m etcdserverpb.Metadata
		err = m.Unmarshal(r.Data)
		number, cluster = m.NodeID, m.ClusterID
		return false, err
	})
	if err == nil && number == 0 {
		err = errors.New("etcd: its log does not say whose it is")
	}
	return number, cluster, err
}

// agreed is how far the member knows that the cluster has come, as its log has it: raft's term, and
// the index of the last entry that was agreed on, which is all that going on alone keeps (etcd's
// force-new-cluster). Each file of the log has it near its beginning, and at every change.
func (k keeper) agreed() (term, index uint64, err error) {
	err = k.readLog(func(r walpb.Record) (more bool, err error) {
		if r.Type != wal.StateType {
			return true, nil
		}
		var s raftpb.HardState
		err = s.Unmarshal(r.Data)
		term, index = s.Term, s.Commit
		return true, err
	})
	return term, index, err
}

// readLog calls do with each record of the newest file of the log, until it wants no more. Etcd may
// be writing to it: what it has begun to write is the end.
func (k keeper) readLog(do func(r walpb.Record) (more bool, err error)) error {
	files, err := filepath.Glob(filepath.Join(k.dirs.EtcdData, logFolder, "*.wal"))
	if err != nil || len(files) == 0 {
		return errors.Join(errors.New("etcd: there is no log"), err)
	}
	f, err := os.Open(slices.Max(files))
	if err != nil {
		return fmt.Errorf("etcd: cannot read its log: %w", err)
	}
	defer f.Close()
	records := wal.NewDecoder(fileutil.NewFileReader(f))
	for more := true; more; {
		var r walpb.Record
		err := records.Decode(&r)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err == nil && r.Type == wal.CrcType {
			records.UpdateCRC(r.Crc)
		} else if err == nil {
			more, err = do(r)
		}
		if err != nil {
			return fmt.Errorf("etcd: cannot read its log: %w", err)
		}
	}
	return nil
}

// stopped is an error, but for one that comes of being asked to stop.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// errRemoved is why a server stops that was not asked to (etcd's rafthttp reports nothing else as
// critical).
var errRemoved = errors.New("this machine's member was removed from the cluster, and its data are not the cluster's any more; `orlopctl etcd rejoin` drops them and joins anew")

// vote has a learner become a voting member, which the leader allows when it has nearly all of the
// data. It also tells the cluster when the member's address is another one than before.
func vote(ctx context.Context, s *etcdserver.EtcdServer, url string, tell func(why string)) error {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for told := ""; ; {
		err := promote(ctx, s, url)
		if err == nil {
			return nil
		}
		if told != err.Error() {
			told = err.Error()
			tell(told)
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
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	if s.IsLearner() {
		if _, err := s.PromoteMember(ctx, uint64(s.MemberID())); err != nil {
			return fmt.Errorf("has no vote yet: %w", err)
		}
	}
	if m := s.Cluster().Member(s.MemberID()); m != nil && !slices.Equal(m.PeerURLs, []string{url}) {
		changed := membership.Member{ID: m.ID, RaftAttributes: membership.RaftAttributes{PeerURLs: []string{url}}}
		if _, err := s.UpdateMember(ctx, changed); err != nil {
			return fmt.Errorf("the other members do not know its address %s yet: %w", url, err)
		}
	}
	return nil
}

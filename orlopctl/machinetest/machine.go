// Package machinetest has a fake machine for the tests of orlopctl. Its services of the API return
// constant responses, and are behind a real apid.
package machinetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/admission/pairing"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/relay"
)

// Machine is a fake machine. Its services of the API listen on a Unix socket and return constant
// responses. A real apid on a TCP port of loopback forwards calls to them.
type Machine struct {
	Code                 pairing.Code // the pairing code that the console would show
	Address, Fingerprint string
	dir                  string // files of apid
	key                  *pki.Leaf
	clients              *pki.CA
	Stop                 func() error
	network              *Network   // nil without a network
	node                 netip.Addr // the address of the machine in the network

	mu      sync.Mutex
	configs struct {
		present *config.Config
		applied time.Time
		past    []*config.Config // earlier configurations; number 1 is the first
	}
	// Slips are secrets that programs of the machine have leaked. They appear as lines in every
	// log, as events, and as texts in topic "memory".
	Slips   []string
	install struct {
		// The machine name in the configuration of the installation. If it is not empty, the
		// machine runs from memory. A machine "quick" has already rebooted from its disk.
		name    string
		watched int // number of watches of the topic "install"
	}
	trial struct {
		name     string // name of the current trial
		confirms int    // number of calls that confirm the trial
		// The number of Confirm calls that will fail, because the machine has not rebooted yet.
		boots int
	}
	calls struct {
		ticket bool // a ticket was requested
		// left maps SERVICE/METHOD to the time that the last call of the method had until its
		// deadline (Left).
		left map[string]time.Duration
	}
}

// Start starts a machine that trusts an operator CA and has no configuration yet.
func Start(operatorCA []byte) (*Machine, error) {
	// The path is short, because the path of a socket has at most 108 bytes.
	dir, err := os.MkdirTemp("", "orlop")
	if err != nil {
		return nil, err
	}
	f := &Machine{dir: dir, Code: pairing.NewCode()}
	f.calls.left = map[string]time.Duration{}
	if f.key, err = pki.SelfSigned(pki.Spec{CN: "orlop", Usage: pki.Server, TTL: time.Hour}); err != nil {
		return nil, err
	}
	f.Fingerprint = pki.Fingerprint(f.key.Cert)
	if f.clients, err = pki.NewCA("clients", 100*time.Hour); err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{
		apid.ServerCertFile: f.key.CertPEM(), apid.ServerKeyFile: f.key.KeyPEM(), apid.OperatorCAsFile: operatorCA, apid.MachineCAsFile: nil, apid.RevokedFile: nil,
		apid.ClientCAsFile: f.clients.CertPEM(), apid.JoinRequestsFile: nil, apid.InventoryFile: nil,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	socket := filepath.Join(dir, "machined.sock")
	backend, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(f.noteUnary), grpc.StreamInterceptor(f.noteStream))
	api.RegisterMachineServer(server, &machineService{f: f})
	api.RegisterConfigServer(server, &configService{f: f})
	api.RegisterApidInternalServer(server, &internalService{f: f})
	api.RegisterServiceServer(server, &serviceService{})
	api.RegisterLogServer(server, &logService{f: f})
	api.RegisterImageServer(server, &imageService{})
	api.RegisterClusterServer(server, &clusterService{f: f})
	api.RegisterUpgradeServer(server, &upgradeService{f: f})
	api.RegisterAuditServer(server, &auditService{})
	api.RegisterTrustServer(server, &trustService{f: f})
	api.RegisterDebugServer(server, debugService{})
	api.RegisterEtcdServer(server, &etcdService{})
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f.Address = front.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- server.Serve(backend) }()
	go func() {
		done <- apid.Serve(ctx, apid.Options{Listener: front, Dir: dir, Backend: socket, Log: io.Discard})
	}()
	f.Stop = func() error {
		cancel()
		server.Stop()
		return errors.Join(<-done, <-done, os.RemoveAll(dir))
	}
	return f, nil
}

// Left returns the time until the deadline of the last call of a method, for example Machine/Reset,
// at the time when the machine received the call. It returns zero if there was no call, or if the
// call had no deadline.
func (f *Machine) Left(method string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls.left[method]
}

// note records the time that a call of a method has until its deadline.
func (f *Machine) note(ctx context.Context, method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	end, limited := ctx.Deadline()
	_, name, _ := strings.Cut(method, "v1alpha1.")
	if delete(f.calls.left, name); limited {
		f.calls.left[name] = time.Until(end)
	}
}

// noteUnary is the interceptor of unary calls. It calls note and checkUnary.
func (f *Machine) noteUnary(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	f.note(ctx, info.FullMethod)
	if err := f.checkUnary(info.FullMethod, r); err != nil {
		return nil, err
	}
	return handle(ctx, r)
}

// noteStream is the interceptor of streams. It calls note.
func (f *Machine) noteStream(s any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	f.note(stream.Context(), info.FullMethod)
	return handle(s, stream)
}

// New starts a machine as Start does, and stops it at the end of the test.
func New(t testing.TB, operatorCA []byte) *Machine {
	t.Helper()
	f, err := Start(operatorCA)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// internalService pairs the machine with an operator.
type internalService struct {
	api.UnimplementedApidInternalServer
	f *Machine
}

// Pair implements api.ApidInternalServer.
func (s *internalService) Pair(_ context.Context, r *api.PairRequest) (*api.PairResponse, error) {
	claim := pairing.Claim{CA: r.Ca, Proof: r.Proof}
	if !s.f.Code.Accepts(r.ChannelBinding, claim) {
		return &api.PairResponse{Refusal: "this is not the code that the machine's console shows now"}, nil
	}
	if err := os.WriteFile(filepath.Join(s.f.dir, apid.OperatorCAsFile), r.Ca, 0o600); err != nil {
		return nil, err
	}
	return &api.PairResponse{Proof: s.f.Code.NewAnswer(r.ChannelBinding, claim).Proof}, nil
}

// slipped returns Slips. It holds the lock meanwhile.
func (f *Machine) slipped() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Slips
}

// Current returns the active configuration, or nil.
func (f *Machine) Current() *config.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.configs.present
}

// Configure makes a configuration active. If the configuration has a Cluster document, Configure
// also issues a server certificate by the machine CA of the cluster, and uses the client CA of the
// cluster, as machined does.
func (f *Machine) Configure(c *config.Config) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.configs.present, f.configs.applied = c, time.Now()
	f.configs.past = append(f.configs.past, c)
	if c.Cluster == nil {
		return nil
	}
	ca, err := pki.ParseCA(f.machineCA(c).PEM())
	if err != nil {
		return err
	}
	ips := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	if f.node.IsValid() {
		ips = append(ips, f.node)
	}
	if own := c.Cluster.Spec.PKI; !own.Client.Key.IsZero() {
		if f.clients, err = pki.ParseCA(own.Client.PEM()); err != nil {
			return err
		}
		if err := f.replace(apid.ClientCAsFile, bundled(own.Client.Cert, own.Accepted.Client)); err != nil {
			return err
		}
	}
	leaf, err := ca.Issue(pki.Spec{
		CN: c.Machine.Metadata.Name, DNS: []string{c.Machine.Metadata.Name}, IPs: ips,
		Usage: pki.Server, TTL: time.Hour, Key: f.key.Key,
	})
	if err != nil {
		return err
	}
	return f.replace(apid.ServerCertFile, leaf.CertPEM())
}

// replace replaces a file of apid atomically, as machined does.
func (f *Machine) replace(name string, content []byte) error {
	temporary := filepath.Join(f.dir, "new")
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(f.dir, name))
}

// Network connects fake machines. Its map has, for the address of a machine in the network, the
// address of its apid.
type Network struct {
	sync.Map
	machines sync.Map // machines by their address in the network
}

// members returns the configurations of the machines that have a Cluster document, by address.
func (n *Network) members() map[string]*config.Config {
	all := map[string]*config.Config{}
	n.machines.Range(func(address, m any) bool {
		if c := m.(*Machine).Current(); c != nil && c.Cluster != nil {
			all[address.(string)] = c
		}
		return true
	})
	return all
}

// machineCA returns the machine CA of the cluster, with its key. A worker does not have the key, so
// machineCA takes the key from another machine of the network.
func (f *Machine) machineCA(c *config.Config) config.CertKey {
	pair := c.Cluster.Spec.PKI.Machine
	if !pair.Key.IsZero() || f.network == nil {
		return pair
	}
	f.network.machines.Range(func(_, m any) bool {
		if m == any(f) {
			return true
		}
		if other := m.(*Machine).Current(); other != nil && other.Cluster != nil && other.Cluster.Spec.PKI.Machine.Cert.PEM() == pair.Cert.PEM() && !other.Cluster.Spec.PKI.Machine.Key.IsZero() {
			pair = other.Cluster.Spec.PKI.Machine
		}
		return true
	})
	return pair
}

// Join adds the machine to a network, with the address node. It must be called before Configure.
func (f *Machine) Join(n *Network, node netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.network, f.node = n, node
	n.Store(node.String(), f.Address)
	n.machines.Store(node.String(), f)
}

// Relay implements api.MachineServer.
func (s *machineService) Relay(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s.f.mu.Lock()
	address, known := s.f.network.Load(first.Target)
	s.f.mu.Unlock()
	if !known {
		return status.Errorf(codes.Unavailable, "nothing answers at %s", first.Target)
	}
	conn, err := net.Dial("tcp", address.(string))
	if err != nil {
		return err
	}
	if err := stream.Send(&api.RelayData{}); err != nil {
		return err
	}
	return relay.Join(stream, conn, time.Minute)
}

var now = timestamppb.New(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC))

type machineService struct {
	api.UnimplementedMachineServer
	f *Machine
}

// Version implements api.MachineServer.
func (s *machineService) Version(context.Context, *api.VersionRequest) (*api.VersionResponse, error) {
	answer := &api.VersionResponse{Version: "1.2.3", Kubernetes: "v1.37.2", Kernel: "6.12.1-cloud", Slot: "A", Profile: "qemu", Built: now,
		DebianArchive: now, NewestModule: timestamppb.New(now.AsTime().AddDate(0, 0, -20))}
	if c := s.f.Current(); c != nil {
		answer.Machine = c.Machine.Metadata.Name
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.install.name != "" && s.f.install.name != "quick" {
		answer.Slot, answer.BootMedium = "", "memory"
	}
	return answer, nil
}

// Get implements api.MachineServer.
func (s *machineService) Get(_ context.Context, r *api.GetRequest) (*api.TopicValue, error) {
	var value any
	switch r.Topic {
	case "":
		return &api.TopicValue{Topics: []string{"links", "memory", "timeline"}}, nil
	case "links":
		value = []any{
			map[string]any{"name": "lo", "up": true, "addresses": []any{"127.0.0.1/8"}},
			map[string]any{"name": "eth0", "up": true, "addresses": []any{"10.0.0.11/24", "fe80::1/64"}, "mtu": 1500,
				"queues": []any{map[string]any{"name": "rx-0", "drops": 0}, map[string]any{"name": "rx-1", "drops": 2}}},
		}
	case "timeline":
		moments := []any{map[string]any{"name": "machined", "seconds": 0.5}, map[string]any{"name": "storage", "seconds": 1.5}, map[string]any{"name": "identity", "seconds": 2}}
		if s.f.Current() != nil {
			moments = append(moments, map[string]any{"name": "orchestrator-api/etcd", "seconds": 2.5})
		}
		value = moments
	case "inventory":
		value = []any{
			map[string]any{"key": "sha256:01", "address": "10.0.0.21", "serial": "SN-1", "uuid": "4c4c4544-0001"},
			map[string]any{"key": "sha256:02", "address": "10.0.0.22", "serial": "SN-1"},
			map[string]any{"key": "sha256:03", "address": "10.0.0.23", "serial": "SN-3"},
		}
	case "configuration":
		s.f.mu.Lock()
		shown := map[string]any{"applied": s.f.configs.applied.Format(time.RFC3339Nano)}
		s.f.mu.Unlock()
		if c := s.f.Current(); c != nil && c.Cluster != nil {
			var names []any
			for _, key := range c.Cluster.Spec.EncryptionKeys() {
				names = append(names, key.Name())
			}
			shown["encryptionKeys"] = names
		}
		value = shown
	case "memory":
		memory := map[string]any{"total": 2048, "available": 1024}
		if slips := s.f.slipped(); len(slips) > 0 {
			var list []any
			for _, slip := range slips {
				list = append(list, slip)
			}
			memory["lines"], memory["text"] = list, strings.Join(slips, "\n")
		}
		value = memory
	default:
		return nil, status.Errorf(codes.NotFound, "topic %q: there is no such topic; the topics are links, memory, timeline", r.Topic)
	}
	v, err := structpb.NewValue(value)
	if err != nil {
		return nil, err
	}
	return &api.TopicValue{Topic: r.Topic, Revision: 7, Value: v}, nil
}

// watchInstall simulates an installation. The first watch ends with a lost connection. The second
// watch shows the end of the installation. The installation of a machine "worn" fails. A machine
// "restless" seems to boot from its boot medium again, because the second watch shows no
// installation.
func (s *machineService) watchInstall(stream grpc.ServerStreamingServer[api.TopicValue]) error {
	s.f.mu.Lock()
	s.f.install.watched++
	states := []map[string]any{{"phase": "installing", "operation": "write version 1.2.3 to ROOT-A (/dev/vda2)", "done": 1 << 20, "total": 2 << 20}}
	if s.f.install.watched > 1 {
		states = []map[string]any{
			{"phase": "installing", "operation": "write version 1.2.3 to ROOT-A (/dev/vda2)", "done": 2 << 20, "total": 2 << 20},
			{"phase": "installing", "operation": "write the boot loader (/dev/vda1)"},
			{"phase": "installed", "disk": "/dev/vda"},
		}
		if s.f.install.name == "worn" {
			states[2] = map[string]any{"phase": "failed", "reason": "cannot write the boot loader (/dev/vda1): input/output error"}
		}
		if s.f.install.name == "restless" {
			states = []map[string]any{{}}
		}
	}
	lost := s.f.install.watched == 1
	s.f.mu.Unlock()
	for _, state := range states {
		value, err := structpb.NewValue(state)
		if err == nil {
			err = stream.Send(&api.TopicValue{Topic: "install", Value: value})
		}
		if err != nil {
			return err
		}
	}
	if lost {
		return status.Error(codes.Unavailable, "the connection is lost")
	}
	return nil
}

// topics are the values of topics that do not change, as JSON. A watch of such a topic sends the
// value and then does not end.
var topics = map[string]string{
	"services": `[{"name": "containerd", "state": "running", "restarts": 0, "since": "2026-05-04T03:02:01Z"}, {"name": "apid", "state": "backoff", "restarts": 3}]`,
	"system":   `{"cpus": 2, "uptimeSeconds": 7200, "load1": 0.5}`,
	"drain": `[{"node": "m1", "operation": "reboot", "by": "dora", "policy": "respect", "phase": "running", "started": "2026-05-04T03:02:01Z", "deadline": "2026-05-04T03:07:01Z",
		"evicted": 2, "left": 3, "pods": [{"pod": "shop/web-1", "state": "blocked", "budget": "web", "message": "The disruption budget web needs 1 healthy pods and has 1 currently"},
		{"pod": "shop/db-0", "state": "ending"}]}]`,
}

// Watch implements api.MachineServer.
func (s *machineService) Watch(r *api.GetRequest, stream grpc.ServerStreamingServer[api.TopicValue]) error {
	if r.Topic == "install" {
		return s.watchInstall(stream)
	}
	if r.Topic == "configuration" { // the first value says that it waits for a service
		waiting, err := structpb.NewValue(map[string]any{"waitingFor": []any{"orchestrator-api"}})
		if err != nil {
			return err
		}
		if err := stream.Send(&api.TopicValue{Topic: r.Topic, Revision: 1, Value: waiting}); err != nil {
			return err
		}
		now, err := s.Get(stream.Context(), r)
		if err != nil {
			return err
		}
		return stream.Send(now)
	}
	if r.Topic == "certificates" {
		value, err := structpb.NewValue(s.f.certificates())
		if err == nil {
			err = stream.Send(&api.TopicValue{Topic: r.Topic, Revision: 1, Value: value})
		}
		return err
	}
	if state, lasting := topics[r.Topic]; lasting {
		value := &structpb.Value{}
		err := value.UnmarshalJSON([]byte(state))
		if err == nil {
			err = stream.Send(&api.TopicValue{Topic: r.Topic, Revision: 1, Value: value})
		}
		if err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	for revision := uint64(1); revision <= 2; revision++ {
		value := structpb.NewStringValue([]string{"booting", "running"}[revision-1])
		if err := stream.Send(&api.TopicValue{Topic: r.Topic, Revision: revision, Value: value}); err != nil {
			return err
		}
	}
	return nil
}

// Events implements api.MachineServer.
func (s *machineService) Events(r *api.EventsRequest, stream grpc.ServerStreamingServer[api.Event]) error {
	for cursor, text := range append([]string{"format STATE (/dev/vda4) as ext4", "containerd is running"}, s.f.slipped()...) {
		event := &api.Event{Cursor: uint64(cursor + 1), Time: now, Source: []string{"disk", "service/containerd"}[min(cursor, 1)], Kind: []string{"operation", "state"}[min(cursor, 1)], Message: text}
		if event.Cursor > r.After {
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
	if r.Follow {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	return nil
}

// Reboot implements api.MachineServer.
func (s *machineService) Reboot(_ context.Context, r *api.PowerRequest) (*api.PowerResponse, error) {
	if err := s.f.checkNeeded(disruption.Reboot, r.Force); err != nil {
		return nil, err
	}
	return &api.PowerResponse{}, checkDrain("reboot", r.Drain)
}

// checkDrain rejects an operation with the drain policy "respect", as a machine does if a
// PodDisruptionBudget blocks the drain. It accepts any other policy.
func checkDrain(operation string, r *api.DrainPolicy) error {
	if r.GetPolicy() != "respect" {
		return nil
	}
	return status.Errorf(codes.FailedPrecondition, "%s refused: drain not complete within %v: pod shop/web-1: must stay: The disruption budget web needs 1 healthy pods and has 1 currently", operation, r.Timeout.AsDuration())
}

// CancelDrain implements api.MachineServer.
func (s *machineService) CancelDrain(_ context.Context, r *api.CancelDrainRequest) (*api.CancelDrainResponse, error) {
	if r.Node != "" && r.Node != "m1" {
		return nil, status.Errorf(codes.FailedPrecondition, "drain: none runs for node %s; `orlopctl get drain` lists the drains of this machine", r.Node)
	}
	return &api.CancelDrainResponse{}, nil
}

// Shutdown implements api.MachineServer.
func (s *machineService) Shutdown(_ context.Context, r *api.PowerRequest) (*api.PowerResponse, error) {
	if err := s.f.checkNeeded(disruption.Shutdown, r.Force); err != nil {
		return nil, err
	}
	if r.GracePeriod.AsDuration() != 90*time.Second {
		return nil, status.Errorf(codes.InvalidArgument, "grace %s: the test expects 90s", r.GracePeriod.AsDuration())
	}
	return &api.PowerResponse{}, nil
}

// Reset implements api.MachineServer.
func (s *machineService) Reset(_ context.Context, r *api.ResetRequest) (*api.PowerResponse, error) {
	operation := disruption.Reset
	if r.Wipe == api.ResetRequest_WIPE_DATA || r.Wipe == api.ResetRequest_WIPE_ALL {
		operation = disruption.ResetData
	}
	if err := s.f.checkNeeded(operation, r.Force); err != nil {
		return nil, err
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.configs.present = nil
	return &api.PowerResponse{}, nil
}

// WipeDisk implements api.MachineServer. The machine has a disk with the serial number B1, and a
// volume "old" without a document of kind Volume.
func (s *machineService) WipeDisk(_ context.Context, r *api.WipeDiskRequest) (*api.WipeDiskResponse, error) {
	switch {
	case r.Disk == "B1":
		return &api.WipeDiskResponse{Done: "/dev/vdb (8 GiB, serial B1) is blank"}, nil
	case r.Volume == "old":
		return &api.WipeDiskResponse{Done: "volume old: /dev/vdb1 is wiped"}, nil
	}
	return nil, status.Errorf(codes.FailedPrecondition, "%s is the system disk, nothing was changed; `orlopctl reset` erases it", r.Disk+r.Volume)
}

type serviceService struct{ api.UnimplementedServiceServer }

// List implements api.ServiceServer.
func (serviceService) List(context.Context, *api.ListServicesRequest) (*api.ListServicesResponse, error) {
	return &api.ListServicesResponse{Services: []*api.ServiceStatus{
		{Name: "containerd", State: "running", Pid: 210, Since: now},
		{Name: "orchestrator-api", State: "starting", Detail: "waits for kube-apiserver", Pid: 211, Restarts: 2, Since: now, Components: []*api.Component{
			{Name: "etcd", Ready: true, Detail: "serving"}, {Name: "kube-apiserver", Detail: "readyz: poststarthook"},
		}},
	}}, nil
}

// Restart implements api.ServiceServer.
func (serviceService) Restart(_ context.Context, r *api.RestartServiceRequest) (*api.RestartServiceResponse, error) {
	if r.Name != "containerd" {
		return nil, status.Errorf(codes.NotFound, "service %q: cannot restart: there is no such service", r.Name)
	}
	return &api.RestartServiceResponse{}, nil
}

type logService struct {
	api.UnimplementedLogServer
	f *Machine
}

// Service implements api.LogServer.
func (s *logService) Service(r *api.ServiceLogRequest, stream grpc.ServerStreamingServer[api.LogLine]) error {
	if r.Service != "containerd" {
		return status.Errorf(codes.NotFound, "service %q: cannot show its log: there is no such service", r.Service)
	}
	lines := append([]string{"one", "two", "three"}, s.f.slipped()...)
	if r.Tail > 0 {
		lines = lines[max(0, len(lines)-int(r.Tail)):]
	}
	for _, text := range lines {
		if err := stream.Send(&api.LogLine{Time: now, Text: text}); err != nil {
			return err
		}
	}
	return nil
}

// Kernel implements api.LogServer.
func (s *logService) Kernel(r *api.KernelLogRequest, stream grpc.ServerStreamingServer[api.LogLine]) error {
	if r.Crash {
		return status.Error(codes.NotFound, "kernel log: no crash is stored")
	}
	if r.PreviousBoot {
		return stream.Send(&api.LogLine{Time: now, Text: "reboot: Restarting system", Priority: 5})
	}
	after := timestamppb.New(now.AsTime().Add(1500 * time.Millisecond))
	err := errors.Join(stream.Send(&api.LogLine{Time: now, Text: "Linux version 6.12", Priority: 5}),
		stream.Send(&api.LogLine{Time: after, Text: "Run /init as init process", Priority: 6}))
	for _, slip := range s.f.slipped() {
		err = errors.Join(err, stream.Send(&api.LogLine{Time: after, Text: slip}))
	}
	return err
}

type imageService struct{ api.UnimplementedImageServer }

// Import implements api.ImageServer.
func (imageService) Import(stream grpc.ClientStreamingServer[api.ImportImageRequest, api.ImportImageResponse]) error {
	var size int64
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if string(request.Chunk) == "not an archive\n" {
			return status.Error(codes.InvalidArgument, "image: cannot import: not an OCI archive")
		}
		size += int64(len(request.Chunk))
	}
	return stream.SendAndClose(&api.ImportImageResponse{Images: []*api.ContainerImage{{Name: "example.test/app:1", Digest: "sha256:abc", Size: size}}})
}

// List implements api.ImageServer.
func (imageService) List(context.Context, *api.ListImagesRequest) (*api.ListImagesResponse, error) {
	return &api.ListImagesResponse{Images: []*api.ContainerImage{
		{Name: "example.test/pause:3", Digest: "sha256:def", Size: 700 << 10}, {Name: "example.test/app:1", Digest: "sha256:abc"},
	}}, nil
}

type clusterService struct {
	api.UnimplementedClusterServer
	f         *Machine
	suspended *api.SuspendedObject // the suspended object, or nil
	// answers is the number of calls of ClusterHealth that were answered.
	answers int
}

// Health implements api.ClusterServer.
func (s *clusterService) Health(r *api.HealthRequest, stream grpc.ServerStreamingServer[api.HealthResponse]) error {
	check := func(name string, ok bool, detail string) *api.HealthCheck {
		return &api.HealthCheck{Name: name, Ok: ok, Detail: detail, Since: now}
	}
	c := s.f.Current()
	if c == nil {
		if err := stream.Send(&api.HealthResponse{Checks: []*api.HealthCheck{check("configuration", false, "waits for a configuration")}}); err != nil || r.Once {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	steps := []*api.HealthResponse{
		{Checks: []*api.HealthCheck{check("configuration", true, ""), check("etcd", false, "starting")}},
		{Checks: []*api.HealthCheck{check("configuration", true, ""), check("etcd", true, "serving")}, Healthy: true},
	}
	if r.Once {
		steps = steps[1:]
	}
	for _, step := range steps {
		if err := stream.Send(step); err != nil {
			return err
		}
	}
	return nil
}

// Kubeconfig implements api.ClusterServer.
func (s *clusterService) Kubeconfig(ctx context.Context, r *api.KubeconfigRequest) (*api.KubeconfigResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if role := md.Get(api.MetadataRole); len(role) != 1 || role[0] != "admin" {
		return nil, status.Errorf(codes.PermissionDenied, "role %q", role)
	}
	server := r.Server
	if server == "" {
		server = "https://10.0.0.11:6443"
	}
	return &api.KubeconfigResponse{Kubeconfig: []byte(`apiVersion: v1
kind: Config
current-context: dev
clusters:
  - name: dev
    cluster:
      server: ` + server + `
users:
  - name: dev-admin
    user:
      client-certificate-data: Zm9v
contexts:
  - name: dev
    context:
      cluster: dev
      user: dev-admin
`)}, nil
}

// auditService has a record of changes with three calls, and a record of rejected calls with two
// lines. Two values of After simulate a manipulated log of changes: for 100, the second call is
// missing, and for 200, an address in the second call is changed.
type auditService struct{ api.UnimplementedAuditServer }

// Read implements api.AuditServer.
func (auditService) Read(r *api.ReadAuditRequest, stream grpc.ServerStreamingServer[api.AuditLine]) error {
	dir, err := os.MkdirTemp("", "audit")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if r.Refused {
		l, err := audit.OpenNamed(dir, audit.Refused, audit.DefaultSize, audit.RefusedFiles)
		for i, outcome := range []string{audit.Started, "NotFound"} {
			if err == nil {
				err = l.Append(time.Date(2026, 5, 4, 3, 2, i, 500e6, time.UTC), audit.Call{Subject: "CN=bob", Role: "operator", Peer: "10.0.0.6:1", Method: "/orlop.v1alpha1.Image/Import", Status: outcome, ID: "AB"})
			}
		}
		if err != nil {
			return err
		}
		return l.Read(r.After, func(_ uint64, line []byte) error { return stream.Send(&api.AuditLine{Line: line}) })
	}
	l, err := audit.Open(dir, audit.DefaultSize, audit.DefaultFiles)
	if err != nil {
		return err
	}
	for i, c := range []audit.Call{
		{Subject: "CN=dora,O=orlop:reader", Serial: "1f", Role: "reader", Peer: "10.0.0.7:4711", Method: "/orlop.v1alpha1.Machine/Reboot", Status: "PermissionDenied", Reason: "it needs\x1b[31m a role"},
		{Subject: "CN=admin,O=orlop:admin", Serial: "20", Role: "admin", Peer: "10.0.0.8:4711", Method: "/orlop.v1alpha1.Config/Apply", Status: "OK", Duration: time.Second},
		{Subject: "CN=admin,O=orlop:admin", Serial: "20", Role: "admin", Peer: "10.0.0.8:4712", Method: "/orlop.v1alpha1.Machine/Reboot", Status: "OK"},
	} {
		if err := l.Append(time.Date(2026, 5, 4, 3, 2, i, 0, time.UTC), c); err != nil {
			return err
		}
	}
	return l.Read(0, func(_ uint64, line []byte) error {
		second := bytes.Contains(line, []byte("Config/Apply"))
		if r.After == 100 && second {
			return nil
		}
		if r.After == 200 && second {
			line = bytes.Replace(line, []byte("10.0.0.8"), []byte("10.0.0.9"), 1)
		}
		return stream.Send(&api.AuditLine{Line: line})
	})
}

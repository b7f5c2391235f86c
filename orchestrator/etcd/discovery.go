package etcd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Before its etcd starts, a machine without data probes the other control-plane machines
// (docs/decisions/0029-members.md). Package etcdjoin decides by their answers whether to bootstrap,
// join or wait. This file sends the probes and performs the decision. All connections require a
// certificate of the etcd CA.
//
// The probes must distinguish a machine without data from an unreachable machine. Therefore a
// machine without data listens on the peer port until its etcd starts there, and answers GET
// requests for waitingPath only (serveWaiting).

const (
	// requestTimeout bounds one request to another machine.
	requestTimeout = 3 * time.Second
	// retryInterval is the time between two rounds of probes. It is also the first delay between
	// failed attempts to join (function start in etcd.go); maxBackoff is the longest.
	retryInterval = time.Second
	maxBackoff    = 2 * time.Minute
	// changeTimeout bounds a change of the members, which needs a quorum.
	changeTimeout = 10 * time.Second
	// waitingPath is the path that a machine answers while it runs discovery (the loop before its
	// etcd starts). etcd, later on the same port, does not know the path.
	waitingPath = "/orlop/waiting"
	// membersPath is the path on the peer port at which etcd lists its members (etcd's package
	// etcdhttp, peer.go).
	membersPath = "/members"
	// clusterHeader is the header of etcd's answer at membersPath that contains the ID of the
	// cluster.
	clusterHeader = "X-Etcd-Cluster-ID"
)

// self describes this machine to package etcdjoin.
func self(spec nodespec.Spec) etcdjoin.Self {
	return etcdjoin.Self{
		Name: spec.Node.Name, URL: peerURL(spec),
		// only the first control-plane machine may bootstrap the cluster
		First: len(spec.ControlPlanes) == 0 || slices.Contains(spec.Node.IPs, spec.ControlPlanes[0]),
	}
}

// identity returns the paths of the certificate of this machine for its peers, and of the CA that
// verifies the certificates of peers. Each connection reads the files again, because they may have
// been renewed.
func identity(dirs dirs.Dirs) transport.TLSInfo {
	at := func(name string) string { return filepath.Join(dirs.API, name) }
	return transport.TLSInfo{
		CertFile: at(nodespec.EtcdPeerCert), KeyFile: at(nodespec.EtcdPeerKey), TrustedCAFile: at(nodespec.EtcdCA),
		ClientCertAuth: true, MinVersion: tls.VersionTLS13,
	}
}

// joiner is a machine without data that becomes a member of etcd.
type joiner struct {
	spec   nodespec.Spec
	dirs   dirs.Dirs
	report func(why string) // shows the operator why the machine waits
}

// discover blocks until etcd may start on this machine: either to bootstrap the cluster, or as a
// member that was added to the existing cluster. For an added member, discover adds the list of
// members to config.
func (n joiner) discover(ctx context.Context, config *embed.Config) error {
	if len(n.spec.OtherControlPlanes()) == 0 {
		return nil // the configuration bootstraps a cluster of one machine
	}
	stop, err := n.serveWaiting()
	if err != nil {
		return err
	}
	defer stop()
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	reported := ""
	var previous []etcdjoin.PeerAnswer
	for {
		answers := n.probeAll(ctx)
		step := etcdjoin.Next(self(n.spec), previous, answers)
		previous = answers
		why := step.Reason
		done, err := n.perform(ctx, step, config)
		if err != nil {
			why += ": " + err.Error()
		}
		if why != reported {
			reported = why
			n.report(why)
		}
		if done {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// perform carries out a decision and reports whether etcd may start.
func (n joiner) perform(ctx context.Context, step etcdjoin.Decision, config *embed.Config) (start bool, err error) {
	if step.Action == etcdjoin.Wait || step.Action == etcdjoin.Bootstrap {
		return step.Action == etcdjoin.Bootstrap, nil
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	c, err := connectTo(n.dirs, clientURL(step.Via))
	if err != nil {
		return false, err
	}
	defer c.Close()
	if step.Action == etcdjoin.Remove {
		if _, err := c.MemberRemove(ctx, step.Member.ID); err != nil {
			return false, fmt.Errorf("cannot remove the member %x: %w", step.Member.ID, err)
		}
		return false, nil // the next round decides again
	}
	added, err := c.MemberAddAsLearner(ctx, []string{peerURL(n.spec)})
	if err != nil {
		return false, fmt.Errorf("etcd accepts no new member at present: %w", err)
	}
	config.InitialCluster = initialCluster(n.spec.Node.Name, added.Member.ID, added.Members)
	config.ClusterState = embed.ClusterStateFlagExisting
	return true, nil
}

// initialCluster returns the members in the form of etcd's option initial-cluster. A member that
// has not started has no name yet. The option needs a name, so initialCluster makes one from the ID
// of the member.
func initialCluster(name string, id uint64, all []*etcdserverpb.Member) string {
	var words []string
	for _, m := range all {
		called := m.Name
		switch {
		case m.ID == id:
			called = name
		case called == "":
			called = fmt.Sprintf("member-%x", m.ID)
		}
		for _, url := range m.PeerURLs {
			words = append(words, called+"="+url)
		}
	}
	return strings.Join(words, ",")
}

// serveWaiting answers waitingPath on the peer port until stop is called.
func (n joiner) serveWaiting() (stop func(), err error) {
	config, err := identity(n.dirs).ServerConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot use the peer certificate: %w", err)
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(n.spec.OwnAddress(), etcdjoin.PeerPort).String())
	if err != nil {
		return nil, fmt.Errorf("cannot open the peer port: %w", err)
	}
	answers := http.NewServeMux()
	answers.HandleFunc("GET "+waitingPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, n.spec.Node.Name) })
	server := &http.Server{Handler: answers, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: requestTimeout, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(tls.NewListener(listener, config)) // Serve returns when stop closes it
	}()
	return func() {
		_ = server.Close() // etcd needs the port
		<-ended
	}, nil
}

// findServing returns another machine that serves the data of the cluster. The bool is false if
// there is none.
func (n joiner) findServing(ctx context.Context) (netip.Addr, bool) {
	for _, a := range n.probeAll(ctx) {
		if a.State == etcdjoin.Serving {
			return a.From, true
		}
	}
	return netip.Addr{}, false
}

// probeAll probes all other control-plane machines in parallel.
func (n joiner) probeAll(ctx context.Context) []etcdjoin.PeerAnswer {
	return forOthers(n, func(a netip.Addr) etcdjoin.PeerAnswer { return n.probe(ctx, a) })
}

// forOthers runs call for all other control-plane machines in parallel, and returns the answers in
// the order of the machines.
func forOthers[Answer any](n joiner, call func(netip.Addr) Answer) []Answer {
	list := n.spec.OtherControlPlanes()
	answers := make([]Answer, len(list))
	var calls sync.WaitGroup
	for i, a := range list {
		calls.Go(func() { answers[i] = call(a) })
	}
	calls.Wait()
	return answers
}

// clusterID returns the ID of the cluster to which the etcd of a machine belongs, or 0 if it is not
// known. etcd answers this request as soon as it runs, without a quorum.
func (n joiner) clusterID(ctx context.Context, a netip.Addr) uint64 {
	answer, err := getFromPeer(ctx, n.dirs, etcdjoin.PeerURL(a)+membersPath)
	if err != nil {
		return 0
	}
	answer.Body.Close()
	cluster, err := strconv.ParseUint(answer.Header.Get(clusterHeader), 16, 64)
	if err != nil {
		return 0
	}
	return cluster
}

// probe returns the state of another machine.
func (n joiner) probe(ctx context.Context, a netip.Addr) etcdjoin.PeerAnswer {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	says := func(s etcdjoin.PeerState, err error) etcdjoin.PeerAnswer {
		return etcdjoin.PeerAnswer{From: a, State: s, Problem: shortReason(err)}
	}
	waits, err := n.isWaiting(ctx, a)
	if err != nil {
		return says(etcdjoin.Unreachable, err)
	}
	if waits {
		return etcdjoin.PeerAnswer{From: a, State: etcdjoin.NoData}
	}
	c, err := connectTo(n.dirs, clientURL(a))
	if err != nil {
		return says(etcdjoin.Unreachable, err)
	}
	defer c.Close()
	list, err := c.MemberList(ctx)
	switch {
	case err == nil:
		return etcdjoin.PeerAnswer{From: a, State: etcdjoin.Serving, Cluster: list.Header.ClusterId, Members: toJoinMembers(list.Members)}
	case errors.Is(err, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)):
		return says(etcdjoin.Unreachable, errors.New("is still joining"))
	}
	// A member without a quorum can answer only from its own memory (a serializable request). The
	// first request may have used up its timeout, so this request gets another timeout.
	again, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	if list, err := c.MemberList(again, clientv3.WithSerializable()); err == nil {
		return says(etcdjoin.NoQuorum, fmt.Errorf("it knows %d members, but too few of them answer", len(list.Members)))
	}
	if list, err := peerMembers(context.WithoutCancel(ctx), n.dirs, etcdjoin.PeerURL(a)); err == nil {
		return says(etcdjoin.NoQuorum, fmt.Errorf("it knows %d members, but too few of them have answered since its start", len(list)))
	}
	return says(etcdjoin.Unreachable, err)
}

// peerMembers returns the members that an etcd lists at its peer URL. etcd answers there from its
// disk as soon as it runs. It answers at its client port, and at its Unix socket for the API server
// of its machine, only after it has had a quorum once since its start (etcd's package embed,
// serve.go).
func peerMembers(ctx context.Context, dirs dirs.Dirs, url string) ([]membership.Member, error) {
	answer, err := getFromPeer(ctx, dirs, url+membersPath)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var list []membership.Member
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answers %s", answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&list); err != nil {
		return nil, fmt.Errorf("cannot decode its members: %w", err)
	}
	return list, nil
}

// isWaiting reports whether a machine answers waitingPath. A machine that does so has no data, and
// runs discovery itself.
func (n joiner) isWaiting(ctx context.Context, a netip.Addr) (bool, error) {
	answer, err := getFromPeer(ctx, n.dirs, etcdjoin.PeerURL(a)+waitingPath)
	if err != nil {
		return false, err
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK, nil
}

// getFromPeer sends a GET request to a peer port. requestTimeout bounds the whole answer.
func getFromPeer(ctx context.Context, dirs dirs.Dirs, url string) (*http.Response, error) {
	config, err := identity(dirs).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot use the peer certificate: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: requestTimeout}).Do(request)
}

// connectTo returns a client of another member's etcd.
func connectTo(dirs dirs.Dirs, urls ...string) (*clientv3.Client, error) {
	config, err := identity(dirs).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot use the peer certificate: %w", err)
	}
	return clientv3.New(clientv3.Config{Endpoints: urls, TLS: config, DialTimeout: requestTimeout, Logger: nopLogger})
}

func clientURL(a netip.Addr) string {
	return "https://" + netip.AddrPortFrom(a, etcdjoin.ClientPort).String()
}

func toJoinMembers(members []*etcdserverpb.Member) []etcdjoin.Member {
	var out []etcdjoin.Member
	for _, m := range members {
		out = append(out, etcdjoin.Member{ID: m.ID, Name: m.Name, URLs: m.PeerURLs, Learner: m.IsLearner})
	}
	return out
}

// shortReason returns a short text for the common causes of a failed call (an error of the kernel,
// a timeout), and the whole text of any other error.
func shortReason(err error) string {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errno.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return err.Error()
}

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

// A machine without data asks the other control-plane machines before its etcd starts
// (docs/decisions/0029-members.md). What it does on their answers is package quorum's; here it asks
// and does. All of that is between holders of a certificate of the etcd CA: where no etcd runs yet,
// the port for members answers one question, whether the machine waits, too.

const (
	// askTime bounds one question to another machine.
	askTime = 3 * time.Second
	// askEvery is between two rounds of them, and askSeldom what it comes to between tries to join
	// that fail.
	askEvery  = time.Second
	askSeldom = 2 * time.Minute
	// changeTime bounds a change of the members, which takes a vote of them.
	changeTime = 10 * time.Second
	// waitingPath is what a machine that waits answers. etcd, on the same port, does not know it.
	waitingPath = "/orlop/waiting"
	// membersPath is what etcd answers there (its etcdhttp, peer.go).
	membersPath = "/members"
	// clusterHeader says, with it, of which cluster they are.
	clusterHeader = "X-Etcd-Cluster-ID"
)

// self is this machine to package quorum.
func self(spec nodespec.Spec) etcdjoin.Self {
	return etcdjoin.Self{
		Name: spec.NodeName, URL: peerURL(spec),
		First: len(spec.ControlPlanes) == 0 || slices.Contains(spec.NodeIPs, spec.ControlPlanes[0]),
	}
}

// identity is how this machine proves itself to other members, and knows them. Its files may have
// been renewed, so it is read each time.
func identity(dirs dirs.Dirs) transport.TLSInfo {
	at := func(name string) string { return filepath.Join(dirs.API, name) }
	return transport.TLSInfo{
		CertFile: at(nodespec.EtcdPeerCert), KeyFile: at(nodespec.EtcdPeerKey), TrustedCAFile: at(nodespec.EtcdCA),
		ClientCertAuth: true, MinVersion: tls.VersionTLS13,
	}
}

// newcomer is a machine without data that becomes a member.
type newcomer struct {
	spec nodespec.Spec
	dirs dirs.Dirs
	tell func(why string) // for the operator
}

// meet returns when etcd may start, with its first configuration completed by who else is a member.
func (n newcomer) meet(ctx context.Context, config *embed.Config) error {
	if len(n.spec.OtherControlPlanes()) == 0 {
		return nil // the configuration is that of a founder
	}
	leave, err := n.wait()
	if err != nil {
		return err
	}
	defer leave()
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	told := ""
	for last := []etcdjoin.PeerAnswer(nil); ; {
		now := n.askAll(ctx)
		step := etcdjoin.Next(self(n.spec), last, now)
		last = now
		why := step.Reason
		done, err := n.do(ctx, step, config)
		if err != nil {
			why += ": " + err.Error()
		}
		if why != told {
			told = why
			n.tell(why)
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

// do does what was decided, and says whether etcd may start.
func (n newcomer) do(ctx context.Context, step etcdjoin.Decision, config *embed.Config) (start bool, err error) {
	if step.Action == etcdjoin.Wait || step.Action == etcdjoin.Bootstrap {
		return step.Action == etcdjoin.Bootstrap, nil
	}
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	c, err := connectTo(n.dirs, clientURL(step.Via))
	if err != nil {
		return false, err
	}
	defer c.Close()
	if step.Action == etcdjoin.Remove {
		if _, err := c.MemberRemove(ctx, step.Member.ID); err != nil {
			return false, fmt.Errorf("the member %x cannot be removed: %w", step.Member.ID, err)
		}
		return false, nil // and decides anew
	}
	added, err := c.MemberAddAsLearner(ctx, []string{peerURL(n.spec)})
	if err != nil {
		return false, fmt.Errorf("etcd does not take another member now: %w", err)
	}
	config.InitialCluster = initialCluster(n.spec.NodeName, added.Member.ID, added.Members)
	config.ClusterState = embed.ClusterStateFlagExisting
	return true, nil
}

// initialCluster is how a member's first configuration names all of them. One that has not started
// has no name yet, and needs one here.
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

// wait answers others that this machine waits, until leave is called.
func (n newcomer) wait() (leave func(), err error) {
	config, err := identity(n.dirs).ServerConfig()
	if err != nil {
		return nil, fmt.Errorf("the certificate for members cannot be used: %w", err)
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(n.spec.OwnAddress(), etcdjoin.PeerPort).String())
	if err != nil {
		return nil, fmt.Errorf("the port for members cannot be opened: %w", err)
	}
	answers := http.NewServeMux()
	answers.HandleFunc("GET "+waitingPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, n.spec.NodeName) })
	server := &http.Server{Handler: answers, ReadTimeout: askTime, WriteTimeout: askTime, IdleTimeout: askTime, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(tls.NewListener(listener, config)) // it ends when it is closed
	}()
	return func() {
		_ = server.Close() // etcd needs the port
		<-ended
	}, nil
}

// serving is another machine that serves the cluster's data, if there is one.
func (n newcomer) serving(ctx context.Context) (netip.Addr, bool) {
	for _, a := range n.askAll(ctx) {
		if a.State == etcdjoin.Serving {
			return a.From, true
		}
	}
	return netip.Addr{}, false
}

// askAll asks all others at once.
func (n newcomer) askAll(ctx context.Context) []etcdjoin.PeerAnswer {
	return askOthers(n, func(a netip.Addr) etcdjoin.PeerAnswer { return n.ask(ctx, a) })
}

// askOthers asks all others one thing at once.
func askOthers[Answer any](n newcomer, ask func(netip.Addr) Answer) []Answer {
	list := n.spec.OtherControlPlanes()
	answers := make([]Answer, len(list))
	var asking sync.WaitGroup
	for i, a := range list {
		asking.Go(func() { answers[i] = ask(a) })
	}
	asking.Wait()
	return answers
}

// clusterAt is the number of the cluster that the etcd at a machine is of; 0 if none says so. It
// does as soon as it runs, and at once.
func (n newcomer) clusterAt(ctx context.Context, a netip.Addr) uint64 {
	answer, err := askPeer(ctx, n.dirs, etcdjoin.PeerURL(a)+membersPath)
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

// ask asks one other machine.
func (n newcomer) ask(ctx context.Context, a netip.Addr) etcdjoin.PeerAnswer {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	says := func(s etcdjoin.PeerState, err error) etcdjoin.PeerAnswer {
		return etcdjoin.PeerAnswer{From: a, State: s, Problem: short(err)}
	}
	waits, err := n.waits(ctx, a)
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
		return etcdjoin.PeerAnswer{From: a, State: etcdjoin.Serving, Cluster: list.Header.ClusterId, Members: toQuorum(list.Members)}
	case errors.Is(err, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)):
		return says(etcdjoin.Unreachable, errors.New("is joining itself"))
	}
	// What has no quorum answers from its own memory only, and the time for the first question is
	// over.
	again, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	if list, err := c.MemberList(again, clientv3.WithSerializable()); err == nil {
		return says(etcdjoin.NoQuorum, fmt.Errorf("it knows %d members, and not enough of them answer", len(list.Members)))
	}
	if list, err := toldToPeers(context.WithoutCancel(ctx), n.dirs, etcdjoin.PeerURL(a)); err == nil {
		return says(etcdjoin.NoQuorum, fmt.Errorf("it knows %d members, and not enough of them answer since it started", len(list)))
	}
	return says(etcdjoin.Unreachable, err)
}

// toldToPeers are the members that an etcd tells at its URL for members. It does so as soon as it
// runs, of what is on its disk; its port for clients, and its socket, answer nothing until a quorum
// has been there once since it started (its embed, serve.go).
func toldToPeers(ctx context.Context, dirs dirs.Dirs, url string) ([]membership.Member, error) {
	answer, err := askPeer(ctx, dirs, url+membersPath)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var list []membership.Member
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answers %s", answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&list); err != nil {
		return nil, fmt.Errorf("its members cannot be decoded: %w", err)
	}
	return list, nil
}

// waits asks a machine's port for members whether it waits, too.
func (n newcomer) waits(ctx context.Context, a netip.Addr) (bool, error) {
	answer, err := askPeer(ctx, n.dirs, etcdjoin.PeerURL(a)+waitingPath)
	if err != nil {
		return false, err
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK, nil
}

// askPeer asks at a port for members. It has askTime for all of the answer.
func askPeer(ctx context.Context, dirs dirs.Dirs, url string) (*http.Response, error) {
	config, err := identity(dirs).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("the certificate for members cannot be used: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: askTime}).Do(request)
}

// connectTo connects with another member's etcd.
func connectTo(dirs dirs.Dirs, urls ...string) (*clientv3.Client, error) {
	config, err := identity(dirs).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("the certificate for members cannot be used: %w", err)
	}
	return clientv3.New(clientv3.Config{Endpoints: urls, TLS: config, DialTimeout: askTime, Logger: silence})
}

func clientURL(a netip.Addr) string {
	return "https://" + netip.AddrPortFrom(a, etcdjoin.ClientPort).String()
}

func toQuorum(members []*etcdserverpb.Member) []etcdjoin.Member {
	var out []etcdjoin.Member
	for _, m := range members {
		out = append(out, etcdjoin.Member{ID: m.ID, Name: m.Name, URLs: m.PeerURLs, Learner: m.IsLearner})
	}
	return out
}

// short is the innermost reason of an error of net/http, which says the whole URL before it.
func short(err error) string {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errno.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return err.Error()
}

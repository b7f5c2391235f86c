package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/vm"
)

const (
	// pairEvery is the interval between two pairs of a write and a read, in the time of the
	// machines. The client makes five requests a second.
	pairEvery = 400 * time.Millisecond
	// requestTimeout is the deadline of one request. A virtual address moves within 5 s. Emulated
	// processors need additional time.
	requestTimeout = 10 * time.Second
)

// customer is a client in the closed network. It creates an object with the Kubernetes API and then
// reads it, at a fixed rate that does not depend on the answers to earlier requests. It repeats a
// failed request once over a new connection.
type customer struct {
	clock  vm.Clock
	maps   typed.ConfigMapInterface
	http   *http.Client
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	requests int
	retried  int
	slowest  time.Duration
	written  []string
	failures []string
}

// clientVerb starts the client, or stops it and checks its results. ADDRESS can be the address of a
// machine or a virtual address.
func (s *story) clientVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 2, "client start ADDRESS, client stop")
	switch {
	case args[0] == "start" && len(args) == 2 && s.customer == nil:
		config, err := clientcmd.BuildConfigFromFlags("", ts.Getenv("KUBECONFIG"))
		ts.Check(err)
		config.Host = "https://" + args[1] + ":6443"
		config.Dial = s.network.DialContext
		config.Timeout = s.lasts(requestTimeout)
		config.QPS = -1
		// With HTTP/1.1, a request that times out closes its connection to the unreachable machine.
		config.NextProtos = []string{"http/1.1"}
		transport, err := rest.HTTPClientFor(config)
		ts.Check(err)
		client, err := typed.NewForConfigAndClient(config, transport)
		ts.Check(err)
		ctx, cancel := context.WithCancel(context.Background())
		s.customer = &customer{clock: s.network.Clock(), maps: client.ConfigMaps("default"), http: transport, cancel: cancel, done: make(chan struct{})}
		go s.customer.run(ctx)
	case args[0] == "stop" && len(args) == 1 && s.customer != nil:
		c := s.customer
		s.customer = nil
		c.stop()
		s.note("the client made %d requests, %d of them twice, the slowest took %.1fs; %d failed", c.requests, c.retried, c.slowest.Seconds(), len(c.failures))
		if len(c.failures) > 0 {
			ts.Fatalf("client: %d of %d requests failed twice:\n%s", len(c.failures), c.requests, strings.Join(c.failures, "\n"))
		}
		if len(c.written) == 0 {
			ts.Fatalf("client: no write succeeded")
		}
		stillThere(ts, c.maps, c.written)
		s.note("all its %d writes are there", len(c.written))
	default:
		ts.Fatalf("client: start ADDRESS once, then stop")
	}
}

func (c *customer) stop() { c.cancel(); <-c.done }

// run starts a pair in each interval until ctx ends. It returns when all started pairs have ended.
func (c *customer) run(ctx context.Context) {
	defer close(c.done)
	var begun sync.WaitGroup
	defer begun.Wait()
	ticker := time.NewTicker(c.clock.Outside(pairEvery))
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			begun.Go(func() { c.pair(context.WithoutCancel(ctx), fmt.Sprintf("client-%06d", n)) })
		}
	}
}

// pair creates an object and then reads it.
func (c *customer) pair(ctx context.Context, name string) {
	want := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name}, Data: map[string]string{"name": name}}
	err := c.request("write "+name, func() error {
		_, err := c.maps.Create(ctx, want, meta.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the first write succeeded, but its answer was lost
			err = nil
		}
		return err
	})
	if err != nil {
		return
	}
	c.mu.Lock()
	c.written = append(c.written, name)
	c.mu.Unlock()
	c.request("read "+name, func() error {
		got, err := c.maps.Get(ctx, name, meta.GetOptions{})
		if err == nil && got.Data["name"] != name {
			err = fmt.Errorf("the object contains %q", got.Data["name"])
		}
		return err
	})
}

// request calls do, and calls it a second time if the first call fails. It records the duration
// and, if both calls fail, a failure with the text what. It returns the error of the last call.
func (c *customer) request(what string, do func() error) error {
	began := time.Now()
	first := do()
	err, took := first, c.clock.Since(began)
	again := first != nil
	if again {
		// The machine may have become unreachable. The second attempt must not use an idle
		// connection to it.
		utilnet.CloseIdleConnectionsFor(c.http.Transport)
		err = do()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.slowest = max(c.slowest, c.clock.Since(began))
	if again {
		c.retried++
	}
	if err != nil {
		c.failures = append(c.failures, fmt.Sprintf("%s at %s: after %.1fs: %v; after %.1fs: %v", what, c.clock.At(began).Format("15:04:05.0"), took.Seconds(), first, c.clock.Since(began).Seconds(), err))
	}
	return err
}

// leaderVerb sets $LEADER to the name of the machine with the leader of etcd, and $FOLLOWER to the
// name of another machine.
func (s *story) leaderVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 0, 0, "leader")
	c := s.client(ts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), s.lasts(2*time.Minute))
	defer cancel()
	var name, other string
	ts.Check(until(s.lasts(time.Minute), func() error {
		status, err := c.Etcd.Status(ctx, &api.EtcdStatusRequest{})
		if err != nil {
			return err
		}
		for _, m := range status.Members {
			if m.Id == status.Leader {
				name = m.Name
			} else {
				other = m.Name
			}
		}
		if name == "" {
			return errors.New("etcd has no leader")
		}
		return nil
	}))
	ts.Setenv("LEADER", name)
	ts.Setenv("FOLLOWER", other)
	s.note("%s leads etcd", name)
}

// networkVerb disconnects a machine from the closed network, or connects it again.
func (s *story) networkVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "network cut|join NAME")
	if args[0] != "cut" && args[0] != "join" {
		ts.Fatalf("network: unknown argument %q", args[0])
	}
	ts.Check(s.network.SetFaults(s.machine(ts, args[1]).Name(), vm.Faults{Down: args[0] == "cut"}))
	s.note("the network of %s: %s", args[1], args[0])
}

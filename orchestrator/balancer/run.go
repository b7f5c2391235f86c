package balancer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/health"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component.
const Name = "balancer"

// maxOpen bounds the connections; each has six file descriptors. The components of a node have
// about ten.
const maxOpen = 512

// timeout is the time within which an API server must answer a probe.
const timeout = 2 * time.Second

// acceptRetry is the delay after a failed accept.
const acceptRetry = 100 * time.Millisecond

// Components describes the balancer without its Run function. If the cluster has a single
// control-plane machine, that machine has no balancer.
func Components(spec nodespec.Spec) []component.Component {
	if _, there := kubeconfig.Balancer(spec); !there {
		return nil
	}
	return []component.Component{{Process: component.Node, Name: Name}}
}

// OfflineAPI answers instead of the API servers from the start until the first of them works.
type OfflineAPI interface {
	Address() string // host:port; empty if it cannot answer
	Stop()           // an API server works
}

// Run forwards connections until ctx is done. It is for nodes with Components.
func Run(ctx context.Context, env component.Env, offline OfflineAPI) error {
	servers, err := Servers(env.Spec)
	if err != nil {
		return err
	}
	listen, _ := kubeconfig.Balancer(env.Spec)
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", listen.String())
	if err != nil {
		return fmt.Errorf("cannot listen on %s, the address for this node's components: %w; stop the program that listens there, "+
			"such as a pod of the host's network", listen, err)
	}
	return newBalancer(socket.(*net.TCPListener), filepath.Join(env.Dirs.Node, nodespec.CA), servers, offline, env.Announce).run(ctx)
}

// balancer is a running balancer. Make it with newBalancer.
type balancer struct {
	socket     *net.TCPListener
	dialer     *net.Dialer
	prober     *health.Prober
	offlineAPI OfflineAPI
	announce   component.Announce
	changed    cell.Signal   // the state has changed
	slots      chan struct{} // semaphore of the connections

	mu    sync.Mutex
	state State
	open  map[*connection]struct{}
}

func newBalancer(socket *net.TCPListener, caFile string, servers []string, offline OfflineAPI, announce component.Announce) *balancer {
	dialer := dialer(socket.Addr().(*net.TCPAddr).AddrPort())
	return &balancer{
		socket: socket, dialer: dialer, prober: newProber(caFile, dialer), offlineAPI: offline, announce: announce,
		changed: cell.NewSignal(), slots: make(chan struct{}, maxOpen), state: NewState(servers, offline.Address()), open: map[*connection]struct{}{},
	}
}

// newProber returns a prober for the readiness of API servers. The certificate of each server is
// for the same name, regardless of the server's address.
func newProber(caFile string, dialer *net.Dialer) *health.Prober {
	return &health.Prober{
		CAFile: caFile, Name: kubeconfig.Local().Name, Path: "/readyz", Timeout: timeout, Idle: 2 * standbyInterval, Dial: dialer.DialContext,
	}
}

// run performs the actions of the state until ctx is done or no connection can be accepted. It
// returns when all its goroutines have ended.
func (b *balancer) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	refused := make(chan error, 1)
	parts.Go(func() { refused <- b.accept(ctx, &parts) })
	defer func() {
		stop()
		_ = b.socket.Close() // ends accept; no data can be lost
		parts.Wait()
		b.prober.Close()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	reported := ""
	for {
		select {
		case <-timer.C:
		case <-b.changed:
		case err := <-refused:
			if ctx.Err() != nil {
				return nil
			}
			return err
		case <-ctx.Done():
			return nil
		}
		todo, works, detail := b.next(time.Now())
		for _, address := range todo.Probe {
			parts.Go(func() {
				got := b.prober.Probe(ctx, address)
				b.change(func(s *State) {
					s.ProbeDone(address, ProbeResult{Reachable: got.Reachable, Problem: got.Problem}, time.Now())
				})
			})
		}
		b.close(todo.Close)
		if todo.FirstReady {
			b.offlineAPI.Stop()
		}
		timer.Stop()
		if !todo.Until.IsZero() {
			timer.Reset(time.Until(todo.Until))
		}
		if detail != reported {
			b.announce(Name, works, detail)
			reported = detail
		}
	}
}

func (b *balancer) next(now time.Time) (todo Actions, works bool, detail string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	todo = b.state.Next(now)
	works, detail = b.state.Describe()
	return todo, works, detail
}

// change changes the state and wakes run.
func (b *balancer) change(f func(*State)) {
	b.mu.Lock()
	f(&b.state)
	b.mu.Unlock()
	b.changed.Wake()
}

// close closes the connections to the servers.
func (b *balancer) close(servers []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.open {
		if slices.Contains(servers, c.server) {
			c.close()
		}
	}
}

// accept accepts connections until the socket is closed. It closes connections beyond the limit at
// once.
func (b *balancer) accept(ctx context.Context, parts *sync.WaitGroup) error {
	for {
		client, err := b.socket.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("cannot accept connections: %w", err)
		}
		// Descriptors or memory are exhausted at present (accept(2)); the next attempt may succeed.
		if err != nil {
			if backoff.Sleep(ctx, acceptRetry) != nil {
				return nil
			}
			continue
		}
		release, ok := limits.TryAcquire(b.slots)
		if !ok {
			_ = client.Close() // no data were accepted from the client
			continue
		}
		parts.Go(func() {
			b.serve(ctx, client)
			release()
		})
	}
}

// serve serves a client until its connection has ended, or ctx is done.
func (b *balancer) serve(ctx context.Context, client *net.TCPConn) {
	c := b.connect(ctx, client)
	if c == nil {
		_ = client.Close() // no data were accepted from the client
		return
	}
	end := context.AfterFunc(ctx, c.close)
	c.forward()
	end()
	b.change(func(s *State) {
		s.ConnClosed(c.server)
		delete(b.open, c)
	})
}

// connect connects a client to the first server that accepts; nil if none does. The socket of the
// client buffers its data meanwhile.
func (b *balancer) connect(ctx context.Context, client *net.TCPConn) *connection {
	b.mu.Lock()
	order := b.state.Order()
	b.mu.Unlock()
	for _, address := range order {
		upstream, err := b.dialer.DialContext(ctx, "tcp", address)
		if ctx.Err() != nil {
			if err == nil {
				_ = upstream.Close() // no data were sent
			}
			return nil
		}
		if err != nil {
			b.change(func(s *State) { s.ConnectFailed(address, health.Reason(err)) })
			continue
		}
		c := &connection{server: address, client: client, upstream: upstream.(*net.TCPConn)}
		b.change(func(s *State) {
			s.ConnOpened(address)
			b.open[c] = struct{}{}
		})
		return c
	}
	return nil
}

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
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/health"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "balancer"

// maxOpen bounds connections: each has six file descriptors. A node's components have about ten.
const maxOpen = 512

// patience is how long an API server may take to answer a question.
const patience = 2 * time.Second

// acceptAgain is how long it is waited when a connection could not be taken.
const acceptAgain = 100 * time.Millisecond

// Components describes the balancer without its Run function. A control plane of one machine has
// none.
func Components(spec nodespec.Spec) []component.Component {
	if _, there := kubeconfig.Balancer(spec); !there {
		return nil
	}
	return []component.Component{{Process: component.Node, Name: Name}}
}

// OfflineAPI answers in the place of API servers after the start until the first one works.
type OfflineAPI interface {
	Address() string // host:port; empty when it cannot
	Stop()           // there is one that works
}

// Run carries connections until ctx is done. It is for nodes that have Components.
func Run(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, standIn OfflineAPI, announce component.Announce) error {
	servers, err := Servers(spec)
	if err != nil {
		return err
	}
	listen, _ := kubeconfig.Balancer(spec)
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", listen.String())
	if err != nil {
		return fmt.Errorf("cannot listen on %s, where this node's components look for the API server: %w; end what listens there, "+
			"such as a pod of the host's network", listen, err)
	}
	return newBalancer(socket.(*net.TCPListener), filepath.Join(dirs.Node, nodespec.CA), servers, standIn, announce).run(ctx)
}

// balancer is a running balancer. Make it with newBalancer.
type balancer struct {
	socket   *net.TCPListener
	dialer   *net.Dialer
	prober   *health.Prober
	standIn  OfflineAPI
	announce component.Announce
	changed  chan struct{} // the state has changed
	places   chan struct{} // one for each connection

	mu    sync.Mutex
	state State
	open  map[*connection]struct{}
}

func newBalancer(socket *net.TCPListener, caFile string, servers []string, standIn OfflineAPI, announce component.Announce) *balancer {
	dialer := dialer(socket.Addr().(*net.TCPAddr).AddrPort())
	return &balancer{
		socket: socket, dialer: dialer, prober: newProber(caFile, dialer), standIn: standIn, announce: announce,
		changed: make(chan struct{}, 1), places: make(chan struct{}, maxOpen), state: NewState(servers, standIn.Address()), open: map[*connection]struct{}{},
	}
}

// newProber asks API servers whether they are ready. The certificate of each is for the name,
// whatever its address.
func newProber(caFile string, dialer *net.Dialer) *health.Prober {
	return &health.Prober{
		CAFile: caFile, Name: kubeconfig.Local().Name, Path: "/readyz", Timeout: patience, Idle: 2 * standby, Dial: dialer.DialContext,
	}
}

// run does what the state says until ctx is done or no connection can be accepted, and ends when
// all of its parts have.
func (b *balancer) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	refused := make(chan error, 1)
	parts.Go(func() { refused <- b.accept(ctx, &parts) })
	defer func() {
		stop()
		_ = b.socket.Close() // it ends accept; nothing can be lost by it
		parts.Wait()
		b.prober.Close()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	told := ""
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
			b.standIn.Stop()
		}
		timer.Stop()
		if !todo.Until.IsZero() {
			timer.Reset(time.Until(todo.Until))
		}
		if detail != told {
			b.announce(Name, works, detail)
			told = detail
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

// change changes the state, and has run look at it.
func (b *balancer) change(f func(*State)) {
	b.mu.Lock()
	f(&b.state)
	b.mu.Unlock()
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// close breaks off the connections to the servers.
func (b *balancer) close(servers []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.open {
		if slices.Contains(servers, c.server) {
			c.close()
		}
	}
}

// accept accepts connections until the socket is closed. Those that are too many are closed at
// once.
func (b *balancer) accept(ctx context.Context, parts *sync.WaitGroup) error {
	for {
		client, err := b.socket.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("cannot accept connections: %w", err)
		}
		// no descriptors or memory at present (accept(2)): the next one may be taken
		if err != nil {
			select {
			case <-time.After(acceptAgain):
				continue
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case b.places <- struct{}{}:
			parts.Go(func() {
				b.serve(ctx, client)
				<-b.places
			})
		default:
			_ = client.Close() // nothing was promised to it
		}
	}
}

// serve serves one client until its connection has ended, or ctx is done.
func (b *balancer) serve(ctx context.Context, client *net.TCPConn) {
	c := b.connect(ctx, client)
	if c == nil {
		_ = client.Close() // nothing was promised to it
		return
	}
	end := context.AfterFunc(ctx, c.close)
	c.carry()
	end()
	b.change(func(s *State) {
		s.ConnClosed(c.server)
		delete(b.open, c)
	})
}

// connect connects a client with the first server that lets itself be connected with; nil when none
// does. What the client has sent waits in its socket meanwhile.
func (b *balancer) connect(ctx context.Context, client *net.TCPConn) *connection {
	b.mu.Lock()
	order := b.state.Order()
	b.mu.Unlock()
	for _, address := range order {
		upstream, err := b.dialer.DialContext(ctx, "tcp", address)
		if ctx.Err() != nil {
			if err == nil {
				_ = upstream.Close() // nothing was sent
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

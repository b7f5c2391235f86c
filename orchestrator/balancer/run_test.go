package balancer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/pki"
)

// cluster is a CA, and the file with its certificate.
type cluster struct {
	ca     *pki.CA
	caFile string
}

func newCluster(t testing.TB) cluster {
	t.Helper()
	ca, err := pki.NewCA("kubernetes", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{ca, filepath.Join(t.TempDir(), "ca.crt")}
	c.write(t, ca)
	return c
}

func (c cluster) write(t testing.TB, cas ...*pki.CA) {
	t.Helper()
	var all []byte
	for _, ca := range cas {
		all = append(all, ca.CertPEM()...)
	}
	if err := os.WriteFile(c.caFile, all, 0o600); err != nil {
		t.Fatal(err)
	}
}

// backend is an API server. Over TLS it answers on /readyz, and sends its name on other paths. On a
// connection without TLS it echoes until the end.
type backend struct {
	name    string
	address string
	config  *tls.Config
	sick    atomic.Bool
	hangs   atomic.Bool // it accepts connections and reads nothing
	answers atomic.Int64

	mu    sync.Mutex
	open  map[net.Conn]struct{}
	ended *sync.WaitGroup
	close func()
}

func (c cluster) backend(t testing.TB, name string) *backend {
	t.Helper()
	leaf, err := c.ca.Issue(pki.Spec{CN: "kube-apiserver", DNS: []string{"localhost"}, Usage: pki.Server, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.CertPEM(), leaf.KeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{name: name, address: "127.0.0.1:0", config: &tls.Config{Certificates: []tls.Certificate{pair}}, open: map[net.Conn]struct{}{}}
	b.start(t)
	t.Cleanup(b.stop)
	return b
}

// start listens; a second call uses the same address again.
func (b *backend) start(t testing.TB) {
	t.Helper()
	socket, err := net.Listen("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	b.address, b.ended = socket.Addr().String(), &sync.WaitGroup{}
	web := &handed{Listener: socket, conns: make(chan net.Conn), done: make(chan struct{})}
	server := http.Server{Handler: b, ErrorLog: log.New(io.Discard, "", 0)}
	b.close = sync.OnceFunc(func() {
		close(web.done)
		socket.Close()
		server.Close()
	})
	b.ended.Go(func() { server.Serve(web) })
	b.ended.Go(func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.open[conn] = struct{}{}
			b.mu.Unlock()
			b.ended.Go(func() { b.serve(conn.(*net.TCPConn), web) })
		}
	})
}

// stop simulates the end of the process: the port is closed, and connections are reset.
func (b *backend) stop() {
	b.close()
	b.mu.Lock()
	for c := range b.open {
		c.Close()
	}
	clear(b.open)
	b.mu.Unlock()
	b.ended.Wait()
}

func (b *backend) serve(conn *net.TCPConn, web *handed) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(conn, first); err != nil {
		conn.Close()
		return
	}
	whole := &prefixed{Conn: conn, first: first, hangs: &b.hangs}
	if first[0] == 0x16 { // a TLS handshake
		select {
		case web.conns <- tls.Server(whole, b.config):
		case <-web.done:
			conn.Close()
		}
		return
	}
	defer conn.Close()
	if _, err := io.Copy(conn, whole); err == nil {
		conn.CloseWrite()
	}
}

// handed is a listener for connections that another listener has accepted.
type handed struct {
	net.Listener
	conns chan net.Conn
	done  chan struct{}
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.answers.Add(1)
	if r.URL.Path == "/readyz" && b.sick.Load() {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintln(w, "[+]ping ok\n[-]etcd failed: reason withheld")
		return
	}
	fmt.Fprint(w, b.name)
}

// prefixed is a connection of which the first byte was already read. While its backend hangs, the
// connection discards the data that arrive.
type prefixed struct {
	net.Conn
	first []byte
	hangs *atomic.Bool
}

func (p *prefixed) Read(to []byte) (int, error) {
	if n := copy(to, p.first); n > 0 {
		p.first = p.first[n:]
		return n, nil
	}
	n, err := p.Conn.Read(to)
	for err == nil && p.hangs.Load() {
		n, err = p.Conn.Read(to)
	}
	return n, err
}

// running is a balancer under test; said receives the reports of its state.
type running struct {
	*balancer
	address string
	said    chan string
	stop    func() error
}

// run starts a balancer for the servers. The server "itself" stands for the address of the
// balancer. If prepare is not nil, it changes the balancer before the start.
func run(t testing.TB, c cluster, prepare func(*balancer), servers ...string) *running {
	t.Helper()
	socket, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{address: socket.Addr().String(), said: make(chan string, 1000)}
	for i, s := range servers {
		if s == "itself" {
			servers[i] = r.address
		}
	}
	r.balancer = newBalancer(socket.(*net.TCPListener), c.caFile, servers, noOfflineAPI{}, func(name string, works bool, detail string) {
		r.said <- fmt.Sprintf("%s %t %s", name, works, detail)
	})
	if prepare != nil {
		prepare(r.balancer)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(10 * time.Second):
			return errors.New("does not end")
		}
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// unhurried is the time limit for events that are immediate except on a busy computer.
const unhurried = 5 * time.Second

// wait waits until the balancer announces want. It fails the test after the time within.
func (r *running) wait(t testing.TB, want string, within time.Duration) {
	t.Helper()
	late := time.After(within)
	last := "nothing"
	for last != want {
		select {
		case last = <-r.said:
			t.Log(last)
		case <-late:
			t.Fatalf("announced %q after %v, want %q", last, within, want)
		}
	}
}

// dial connects to the balancer.
func (r *running) dial(t testing.TB) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// client returns a function that requests the name of the server, with a new HTTP client like those
// of the node's components.
func (r *running) client(t testing.TB, c cluster) func() (string, error) {
	prober := newProber(c.caFile, &net.Dialer{})
	client, err := prober.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(prober.Close)
	return func() (string, error) {
		response, err := client.Get("https://" + r.address + "/who")
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return string(body), err
	}
}

// TestForward checks transfers of several sizes, in both directions at the same time, and that the
// server's data still arrive after the client has closed its direction.
func TestForward(t *testing.T) {
	c := newCluster(t)
	a := c.backend(t, "a")
	r := run(t, c, nil, a.address)
	r.wait(t, "balancer true API server "+a.address, 5*time.Second)
	var all sync.WaitGroup
	for i, size := range []int{1, 2, 1 << 10, 32<<10 + 1, 1 << 20, 5<<20 + 3, 20 << 20, 100, 1000, 10000} {
		conn := r.dial(t)
		all.Go(func() {
			data := make([]byte, size)
			random := rand.NewChaCha8([32]byte{byte(i)})
			random.Read(data)
			data[0] = 'x' // not TLS
			var sending sync.WaitGroup
			sending.Go(func() {
				for rest := data; len(rest) > 0; {
					n, err := conn.Write(rest[:min(len(rest), 1+int(random.Uint64()%100000))])
					if err != nil {
						t.Errorf("%d bytes: %v", size, err)
						return
					}
					rest = rest[n:]
				}
				conn.CloseWrite()
			})
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes: %d were returned, %v", size, len(got), err)
			}
			sending.Wait()
		})
	}
	all.Wait()
}

// TestFailover checks the connections of a client while servers stop, hang, become unready and
// recover.
func TestFailover(t *testing.T) {
	c := newCluster(t)
	a, b := c.backend(t, "a"), c.backend(t, "b")
	r := run(t, c, nil, a.address, b.address)
	ask := r.client(t, c)
	expect := func(want string, fails bool) {
		t.Helper()
		begin := time.Now()
		got, err := ask()
		if fails && err != nil { // the connection was closed; the client reconnects
			got, err = ask()
		}
		if err != nil || got != want {
			t.Fatalf("answer %q, %v; want %q", got, err, want)
		}
		t.Logf("answer of %s after %v", got, time.Since(begin))
	}
	onA, onB := "balancer true API server "+a.address, "balancer true API server "+b.address
	r.wait(t, onA, 5*time.Second)
	expect("a", false)

	a.stop()
	begin := time.Now()
	expect("b", true)
	if took := time.Since(begin); took > unhurried {
		t.Errorf("the other server answered after %v", took)
	}
	a.start(t)
	r.wait(t, onA, probeInterval+retryInterval+timeout)
	expect("b", false) // an open connection stays
	if who, err := r.client(t, c)(); err != nil || who != "a" {
		t.Errorf("a new client gets %q, %v; want the preferred server, which works again", who, err)
	}
	idle := r.dial(t)
	if _, err := idle.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(idle, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	a.hangs.Store(true)
	hung := time.Now()
	idle.SetReadDeadline(hung.Add(closed + unhurried))
	if n, err := idle.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection to a hanging server is still open after %v", time.Since(hung))
	}
	t.Logf("closed after %v", time.Since(hung))
	r.wait(t, onB+"; "+a.address+": does not answer", unhurried)
	a.hangs.Store(false)
	r.wait(t, onA, probeInterval+2*timeout)

	b.sick.Store(true)
	r.wait(t, onA+"; "+b.address+": 500 Internal Server Error: etcd failed: reason withheld", probeInterval+retryInterval+timeout+standbyInterval)
	// the balancer closes the connections only after two failed probes
	for deadline := time.Now().Add(retryInterval + timeout); ; {
		if who, err := ask(); err == nil && who == "a" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a connection to an unready server stays open")
		}
	}
}

// TestNoServer checks that a client fails at once if no server works, that the operator sees the
// reason, and that a recovered server is used at once.
func TestNoServer(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	a, stranger := c.backend(t, "a"), other.backend(t, "stranger")
	a.stop()
	r := run(t, c, nil, a.address, stranger.address, "itself", "nobody.invalid:6443")
	r.wait(t, "balancer false no API server works; "+a.address+": connect: connection refused; "+stranger.address+
		": its certificate is not signed by a CA of this cluster; "+
		r.address+": the address is this machine's balancer; nobody.invalid:6443: cannot resolve its name", 5*time.Second)
	conn := r.dial(t)
	conn.SetReadDeadline(time.Now().Add(unhurried))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the client gets %v, want an immediate end of the connection", err)
	}
	a.start(t)
	late := time.After(retryInterval + unhurried)
	for used := false; !used; {
		select {
		case message := <-r.said:
			used = strings.HasPrefix(message, "balancer true API server "+a.address)
		case <-late:
			t.Fatalf("a recovered server is not used after %v", retryInterval+unhurried)
		}
	}
	if who, err := r.client(t, c)(); who != "a" {
		t.Errorf("answer %q, %v", who, err)
	}
}

// TestNewAuthority checks that servers with a certificate of a new CA are used as soon as the CA
// file contains that CA.
func TestNewAuthority(t *testing.T) {
	old, young := newCluster(t), newCluster(t)
	a := young.backend(t, "a")
	r := run(t, old, nil, a.address)
	r.wait(t, "balancer false no API server works; "+a.address+
		": its certificate is not signed by a CA of this cluster", 5*time.Second)
	old.write(t, young.ca, old.ca)
	r.wait(t, "balancer true API server "+a.address, 5*time.Second)
}

// TestLimit checks that excess clients are rejected, and that a new client is accepted after a
// connection was closed.
func TestLimit(t *testing.T) {
	c := newCluster(t)
	a := c.backend(t, "a")
	r := run(t, c, func(b *balancer) { b.slots = make(chan struct{}, 2) }, a.address)
	r.wait(t, "balancer true API server "+a.address, 5*time.Second)
	echo := func(conn *net.TCPConn) error {
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, 1))
		return err
	}
	first, second := r.dial(t), r.dial(t)
	if err := errors.Join(echo(first), echo(second)); err != nil {
		t.Fatal(err)
	}
	if err := echo(r.dial(t)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection beyond the limit: %v, want its immediate end", err)
	}
	first.Close()
	for deadline := time.Now().Add(5 * time.Second); echo(r.dial(t)) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("a client is rejected although a connection was closed")
		}
	}
	if err := echo(second); err != nil {
		t.Error(err)
	}
}

// TestStop checks that all goroutines end with the balancer, in any state of its connections.
func TestStop(t *testing.T) {
	c := newCluster(t)
	a := c.backend(t, "a")
	before := runtime.NumGoroutine()
	r := run(t, c, nil, a.address)
	r.wait(t, "balancer true API server "+a.address, 5*time.Second)
	for i := range 20 {
		conn := r.dial(t)
		if i%2 == 0 {
			// the client does not read the echo, so data remain in transit
			if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
		}
		if i%3 == 0 {
			conn.CloseWrite()
		}
		if i%5 == 0 {
			conn.SetLinger(0) // Close resets the connection
			conn.Close()
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	if len(r.open) != 0 {
		t.Errorf("%d connections are open", len(r.open))
	}
	r.mu.Unlock()
	a.stop()
	after := 0
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if after = runtime.NumGoroutine(); after <= before {
			return
		}
		runtime.Gosched()
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("%d goroutines, %d before:\n%s", after, before, stacks[:runtime.Stack(stacks, true)])
}

// TestDialer checks the socket options by which the kernel detects a server that is silently lost.
func TestDialer(t *testing.T) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	conn, err := dialer(netip.MustParseAddrPort("127.0.0.1:1")).Dial("tcp", socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 10000, unix.TCP_KEEPIDLE: 5, unix.TCP_KEEPINTVL: 2, unix.TCP_KEEPCNT: 2} {
		var got int
		controlled := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) })
		if err := errors.Join(controlled, err); err != nil || got != want {
			t.Errorf("option %d is %d, %v; want %d", option, got, err, want)
		}
	}
}

// BenchmarkRequest measures a request and its answer, 1 KiB each, over an open connection, with and
// without the balancer.
func BenchmarkRequest(b *testing.B) {
	each(b, func(b *testing.B, conn *net.TCPConn) {
		data := bytes.Repeat([]byte("x"), 1<<10)
		for b.Loop() {
			if _, err := conn.Write(data); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(conn, data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkThroughput measures the throughput in both directions, with and without the balancer.
func BenchmarkThroughput(b *testing.B) {
	each(b, func(b *testing.B, conn *net.TCPConn) {
		data := bytes.Repeat([]byte("x"), 1<<20)
		b.SetBytes(int64(len(data)))
		back := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, conn)
			back <- err
		}()
		for b.Loop() {
			if _, err := conn.Write(data); err != nil {
				b.Fatal(err)
			}
		}
		conn.CloseWrite()
		if err := <-back; err != nil {
			b.Fatal(err)
		}
	})
}

// each runs the function do on a direct connection to a server, and on a connection through the
// balancer.
func each(b *testing.B, do func(*testing.B, *net.TCPConn)) {
	c := newCluster(b)
	server := c.backend(b, "a")
	r := run(b, c, nil, server.address)
	r.wait(b, "balancer true API server "+server.address, 5*time.Second)
	for name, address := range map[string]string{"direct": server.address, "balanced": r.address} {
		b.Run(name, func(b *testing.B) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			do(b, conn.(*net.TCPConn))
		})
	}
}

// noOfflineAPI is an offline API server that never answers.
type noOfflineAPI struct{}

func (noOfflineAPI) Address() string { return "" }
func (noOfflineAPI) Stop()           {}

package sender

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/logship/logshiptest"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/pki"
)

// testTimeout is the timeout of each step in these tests. It is long, because the computer may be
// slow.
const testTimeout = time.Minute

// store contains the lines of a source. It retains the last lines, at most keep of them.
type store struct {
	name, boot string
	keep       int
	last       *cell.Cell[uint64]

	mu   sync.Mutex
	kept []uint64
}

func newStore(name, boot string, keep int) *store {
	return &store{name: name, boot: boot, keep: keep, last: cell.New(uint64(0))}
}

func (s *store) add(n int) {
	for range n {
		s.mu.Lock()
		s.last.Update(func(last uint64) uint64 { return last + 1 })
		last, _ := s.last.Get()
		s.kept = append(s.kept, last)
		s.kept = s.kept[max(0, len(s.kept)-s.keep):]
		s.mu.Unlock()
	}
}

func (s *store) source() Source {
	return Source{
		Follow: func(ctx context.Context, after func(string) uint64, each func(Record) error) error {
			last := after(s.name)
			for w := s.last.Watch(); ; {
				if _, _, err := w.Next(ctx); err != nil {
					return err
				}
				s.mu.Lock()
				kept := slices.Clone(s.kept)
				s.mu.Unlock()
				for _, n := range kept {
					if n <= last {
						continue
					}
					if err := each(Record{Source: s.name, Boot: s.boot, Number: n, App: "test", Kind: "log", Text: fmt.Sprint("line ", n)}); err != nil {
						return err
					}
					last = n
				}
			}
		},
		Newest: func() map[string]uint64 { last, _ := s.last.Get(); return map[string]uint64{s.name: last} },
	}
}

// got is a line that a receiver has received.
type got struct {
	Source         string
	Number, Missed uint64
	conn           int // the number of the connection, from 1
}

// manners says what a receiver does after the sender has closed its side of a connection.
type manners int

const (
	polite manners = iota // closes the connection in order
	resets                // resets the connection
	mute                  // neither closes nor resets the connection
)

// receiver is a receiver of JSON lines. A test can stop, restart and block it.
type receiver struct {
	*logshiptest.Receiver
	t     *testing.T
	lines *cell.Cell[[]got]
	conns *cell.Cell[int] // number of accepted connections
	sent  *cell.Cell[int] // number of lines that its senders have encoded

	mu      sync.Mutex
	addr    string // empty before the first start
	manners manners
	hanging chan struct{} // not nil while the receiver hangs; the method kill closes it
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, lines: cell.New([]got(nil)), conns: cell.New(0), sent: cell.New(0)}
	listen := func() (net.Listener, error) { return net.Listen("tcp", cmp.Or(r.addr, "127.0.0.1:0")) }
	var err error
	r.Receiver, err = logshiptest.New(listen, pki.Spec{CN: "logs", IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	check(t, err)
	r.Serve = r.take
	r.start()
	t.Cleanup(r.kill)
	return r
}

// start starts the receiver at its previous address.
func (r *receiver) start() {
	r.t.Helper()
	check(r.t, r.Start())
	r.addr = r.Addr().String()
}

// take reads the lines of a connection to its end, and then acts according to the manners.
func (r *receiver) take(raw net.Conn) {
	if !r.awake() {
		return
	}
	conn := tls.Server(raw, r.TLS)
	defer conn.Close()
	if conn.Handshake() != nil {
		return
	}
	which := 0
	r.conns.Update(func(n int) int { which = n + 1; return which })
	for lines := bufio.NewReader(conn); ; {
		line, err := []byte(nil), error(nil)
		if r.awake() {
			line, err = lines.ReadBytes('\n')
		}
		if err != nil || !r.awake() { // an incomplete line is ignored; the sender sends it again
			r.mu.Lock()
			manners := r.manners
			r.mu.Unlock()
			switch manners {
			case resets:
				_ = raw.(*net.TCPConn).SetLinger(0) // fails if the connection is gone
				raw.Close()
			case mute:
				<-r.t.Context().Done()
			}
			return
		}
		one := got{conn: which}
		if err := json.Unmarshal(line, &one); err != nil {
			r.t.Errorf("%s: %v", line, err)
		}
		r.lines.Update(func(all []got) []got { return append(slices.Clip(all), one) })
	}
}

// behave sets the manners for all connections.
func (r *receiver) behave(m manners) {
	r.mu.Lock()
	r.manners = m
	r.mu.Unlock()
}

// times returns how often the receiver has received the line with this number.
func (r *receiver) times(number uint64) (n int) {
	all, _ := r.lines.Get()
	for _, g := range all {
		if g.Number == number {
			n++
		}
	}
	return n
}

// waitTimes waits until the receiver has received the line with this number want times.
func (r *receiver) waitTimes(number uint64, want int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testTimeout)
	defer cancel()
	if all, err := cell.Wait(ctx, r.lines, func([]got) bool { return r.times(number) >= want }); err != nil {
		r.t.Fatalf("line %d was not received %d times: %v", number, want, all)
	}
}

// awake returns true if the receiver does not hang. Otherwise it waits until the receiver is
// killed, and returns false.
func (r *receiver) awake() bool {
	r.mu.Lock()
	hanging := r.hanging
	r.mu.Unlock()
	if hanging != nil {
		<-hanging
	}
	return hanging == nil
}

// hang stops all reads until the receiver is killed. The connections stay open.
func (r *receiver) hang() {
	r.mu.Lock()
	r.hanging = make(chan struct{})
	r.mu.Unlock()
}

// kill ends the receiver, also while it hangs.
func (r *receiver) kill() {
	r.Kill()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hanging != nil {
		close(r.hanging)
		r.hanging = nil
	}
}

// wait waits until the receiver has the line with this number of a source. It returns all lines
// that the receiver has.
func (r *receiver) wait(source string, number uint64) []got {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testTimeout)
	defer cancel()
	all, err := cell.Wait(ctx, r.lines, func(all []got) bool {
		return slices.ContainsFunc(all, func(g got) bool { return g.Source == source && g.Number == number && g.Missed == 0 })
	})
	if err != nil {
		r.t.Fatalf("line %d of %s was not received: %v", number, source, all)
	}
	return all
}

// settle waits until the receiver has accepted a connection after that of the last line, so the
// sender has replaced the connection. A receiver that closes connections in order has then
// confirmed the lines of the former connection.
func (r *receiver) settle() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testTimeout)
	defer cancel()
	all, _ := r.lines.Get()
	last := 0
	for _, g := range all {
		last = max(last, g.conn)
	}
	if have, err := cell.Wait(ctx, r.conns, func(have int) bool { return have > last }); err != nil {
		r.t.Fatalf("%d connections; the last line came over number %d", have, last)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sender returns a sender with short timeouts and a channel of its events.
func (r *receiver) sender(cursors string, stores ...*store) (*Sender, <-chan string) {
	pool := x509.NewCertPool()
	pool.AddCert(r.CA.Cert)
	events := make(chan string, 100)
	c := Config{
		Name: "test", Address: r.addr, Cursors: cursors,
		Encode: func(l Record) []byte {
			r.sent.Update(func(n int) int { return n + 1 })
			return JSON("m1", l)
		},
		TLS:   &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13},
		Event: func(kind, message string) { events <- kind + ": " + message },
	}
	for _, s := range stores {
		c.Sources = append(c.Sources, s.source())
	}
	s := New(c)
	s.times = times{
		dial: testTimeout, write: testTimeout, closeAfter: 50 * time.Millisecond, closeEarly: time.Millisecond, answer: testTimeout,
		shutdown: testTimeout, steady: 10 * time.Millisecond, minBackoff: 10 * time.Millisecond, maxBackoff: 50 * time.Millisecond, sourceRetry: time.Second,
	}
	return s, events
}

// run runs the sender until the returned function is called.
func run(t *testing.T, s *Sender) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	return func() {
		t.Helper()
		cancel()
		select {
		case <-ended:
		case <-time.After(testTimeout):
			t.Fatal("the sender does not end within the timeout")
		}
	}
}

// firsts returns the line numbers of a source in the order in which they first arrived.
func firsts(all []got, source string) (numbers []uint64) {
	seen := map[uint64]bool{}
	for _, g := range all {
		if g.Source == source && g.Missed == 0 && !seen[g.Number] {
			seen[g.Number] = true
			numbers = append(numbers, g.Number)
		}
	}
	return numbers
}

func oneTo(n int) (numbers []uint64) {
	for i := range n {
		numbers = append(numbers, uint64(i+1))
	}
	return numbers
}

// TestNothingIsLost checks that each line arrives at least once, and that the lines first arrive in
// order. The receiver hangs while its socket contains lines that TCP has acknowledged, is killed
// and restarts. Later, it is killed again while it reads.
func TestNothingIsLost(t *testing.T) {
	r := newReceiver(t)
	audit, service := newStore("audit", "", 1000), newStore("services/x", "b", 1000)
	s, events := r.sender("", audit, service)
	stop := run(t, s)
	audit.add(100)
	service.add(10)
	r.wait("services/x", 10)
	r.wait("audit", 100)
	r.settle() // the delivery of all lines is confirmed

	r.hang()
	audit.add(100)
	service.add(10)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	// wait until lines are in the socket of the hanging receiver
	if n, err := cell.Wait(ctx, r.sent, func(n int) bool { return n > 110 }); err != nil {
		t.Fatalf("%d lines sent: %+v", n, s.State())
	}
	before, _ := r.lines.Get()
	r.kill()
	if n := len(firsts(before, "audit")); n >= 200 {
		t.Fatalf("the receiver has %d lines although it hung", n)
	}
	r.start()
	audit.add(100)
	r.wait("audit", 250)
	r.kill()
	r.start()
	audit.add(100)
	service.add(10)
	r.wait("services/x", 30)
	all := r.wait("audit", 400)
	stop()
	if got := firsts(all, "audit"); !slices.Equal(got, oneTo(400)) {
		t.Errorf("audit: %d lines: %v", len(got), got)
	}
	all, _ = r.lines.Get()
	if got := firsts(all, "services/x"); !slices.Equal(got, oneTo(30)) {
		t.Errorf("services/x: %d lines: %v", len(got), got)
	}
	if got := s.State(); got.Dropped != 0 || got.Pending != 0 || got.Problem == "" || !got.Connected.IsZero() {
		t.Errorf("%+v", got)
	}
	var told []string
	for len(events) > 0 {
		told = append(told, <-events)
	}
	if text := strings.Join(told, "\n"); !strings.Contains(text, "state: receiver test: connected to 127.0.0.1:") || !strings.Contains(text, "failure: receiver test: unreachable") {
		t.Errorf("events:\n%s", text)
	}
}

// TestTakenOnce checks that a receiver which closes connections in order gets no line twice,
// although the sender replaces the connection several times. A new sender continues after the last
// delivered line of the source audit, because the numbers of this source continue over boots.
func TestTakenOnce(t *testing.T) {
	r := newReceiver(t)
	audit, events := newStore("audit", "", 1000), newStore("events", "b", 1000)
	cursors := filepath.Join(t.TempDir(), "archive.json")
	s, _ := r.sender(cursors, audit, events)
	stop := run(t, s)
	for i := range 5 {
		audit.add(3)
		events.add(3)
		r.wait("audit", uint64(3*i+3))
		r.wait("events", uint64(3*i+3))
		r.settle()
	}
	stop()
	if text, err := os.ReadFile(cursors); err != nil || string(text) != `{"taken":{"audit":15},"orderly":true}`+"\n" {
		t.Errorf("%s, %v", text, err)
	}
	s, _ = r.sender(cursors, audit, events)
	audit.add(1)
	stop = run(t, s)
	r.wait("audit", 16)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	// the new sender sends the events again, because their numbers start again at each boot
	all, err := cell.Wait(ctx, r.lines, func(all []got) bool { return len(all) >= 15+15+1+15 })
	stop()
	count := 0
	for _, g := range all {
		if g.Source == "audit" {
			count++
		}
	}
	if err != nil || count != 16 || !slices.Equal(firsts(all, "audit"), oneTo(16)) {
		t.Errorf("%v: %v", err, all)
	}
}

// TestImpolite checks which lines are sent twice to a receiver that never closes a connection. The
// sender sends the line of the first connection again, because the receiver has not confirmed it.
// After that, the sender has detected this behavior, and sends each line once.
func TestImpolite(t *testing.T) {
	r := newReceiver(t)
	r.behave(mute)
	audit := newStore("audit", "", 1000)
	s, _ := r.sender("", audit)
	s.times.answer, s.times.shutdown = 20*time.Millisecond, 20*time.Millisecond
	stop := run(t, s)
	for i := range 6 {
		audit.add(1)
		r.wait("audit", uint64(i+1))
		if i == 0 { // the receiver did not close the first connection, so the line is sent again
			r.waitTimes(1, 2)
		}
		r.settle()
	}
	stop()
	for n, want := range map[uint64]int{1: 2, 2: 1, 5: 1, 6: 1} {
		if have := r.times(n); have != want {
			t.Errorf("line %d was received %d times; want %d", n, have, want)
		}
	}
	if p := s.State().Problem; !strings.Contains(p, "never closes a connection in order") {
		t.Error(p)
	}
}

// TestNoReceipt checks that only an orderly close of the connection confirms the delivery of lines
// whose numbers continue over boots. A reset does not confirm it. A missing close does not, either,
// if the receiver has closed an earlier connection in order, even for another sender.
func TestNoReceipt(t *testing.T) {
	for _, m := range []manners{resets, mute} {
		r := newReceiver(t)
		audit := newStore("audit", "", 1000)
		cursors := filepath.Join(t.TempDir(), "archive.json")
		s, _ := r.sender(cursors, audit)
		stop := run(t, s)
		audit.add(1)
		r.wait("audit", 1)
		r.settle()
		stop()
		r.behave(m)
		audit.add(1)
		s, _ = r.sender(cursors, audit)
		s.times.answer, s.times.shutdown = 20*time.Millisecond, 20*time.Millisecond
		stop = run(t, s)
		r.waitTimes(2, maxUnanswered+2)
		stop()
		if text, err := os.ReadFile(cursors); err != nil || string(text) != `{"taken":{"audit":1},"orderly":true}`+"\n" {
			t.Errorf("%s, %v", text, err)
		}
		r.behave(polite)
		s, _ = r.sender(cursors, audit)
		stop = run(t, s)
		r.waitTimes(2, r.times(2)+1)
		r.settle()
		stop()
		if text, err := os.ReadFile(cursors); err != nil || string(text) != `{"taken":{"audit":2},"orderly":true}`+"\n" {
			t.Errorf("%s, %v", text, err)
		}
	}
}

// TestQuiet checks that a receiver may close idle connections: it gets the lines that are added
// later, and no failure is reported.
func TestQuiet(t *testing.T) {
	r := newReceiver(t)
	audit := newStore("audit", "", 1000)
	s, events := r.sender("", audit)
	s.times.steady = 0
	stop := run(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for i := range 4 {
		if n, err := cell.Wait(ctx, r.conns, func(n int) bool { return n > i }); err != nil {
			t.Fatalf("%d connections", n)
		}
		if i == 3 {
			break
		}
		r.CloseConnections()
	}
	audit.add(1)
	r.wait("audit", 1)
	stop()
	for len(events) > 0 {
		if e := <-events; strings.HasPrefix(e, "failure") {
			t.Error(e)
		}
	}
}

// TestCursorsNull checks that a file of cursors that contains no cursors, for example "null", has
// the same effect as a missing file.
func TestCursorsNull(t *testing.T) {
	r := newReceiver(t)
	audit := newStore("audit", "", 1000)
	for _, text := range []string{"null", `{"taken":null}`, "{}"} {
		cursors := filepath.Join(t.TempDir(), "archive.json")
		check(t, os.WriteFile(cursors, []byte(text), 0o600))
		s, _ := r.sender(cursors, audit)
		stop := run(t, s)
		audit.add(1)
		last, _ := audit.last.Get()
		r.wait("audit", last)
		stop()
	}
}

// TestGap checks that lines which the store drops while the receiver is away are reported to the
// receiver (Missed) and counted in the state. Lines from before the first connection are not
// counted.
func TestGap(t *testing.T) {
	r := newReceiver(t)
	events := newStore("events", "b", 10)
	events.add(100)
	s, _ := r.sender("", events)
	defer run(t, s)()
	all := r.wait("events", 100)
	if slices.ContainsFunc(all, func(g got) bool { return g.Missed > 0 }) {
		t.Errorf("lines from before the first connection are reported as missed: %v", all)
	}
	r.settle()
	r.kill()
	events.add(50)
	r.start()
	all = r.wait("events", 150)
	i := slices.IndexFunc(all, func(g got) bool { return g.Missed > 0 })
	if i < 0 || all[i].Number != 140 || all[i].Missed != 40 || all[i+1].Number != 141 {
		t.Errorf("%v", all)
	}
	if got := s.State().Dropped; got != 40 {
		t.Errorf("%d lines dropped; want 40", got)
	}
}

// TestBatch checks that a single call of write sends the waiting lines, at most batchSize.
func TestBatch(t *testing.T) {
	s := New(Config{Encode: func(l Record) []byte { return fmt.Appendln(nil, l.Number) }})
	lines := make(chan Record, 3*batchSize)
	for n := range 3 * batchSize {
		lines <- Record{Source: "events", Number: uint64(n) + 2}
	}
	var out strings.Builder
	if err := s.write(bufio.NewWriter(&out), Record{Source: "events", Number: 1}, lines); err != nil {
		t.Fatal(err)
	}
	if sent := strings.Count(out.String(), "\n"); sent != batchSize || len(lines) != 2*batchSize+1 {
		t.Errorf("%d lines sent, %d wait; want %d and %d", sent, len(lines), batchSize, 2*batchSize+1)
	}
}

// TestHanging checks that a receiver which hangs does not block the stores or another receiver, and
// that its sender can end.
func TestHanging(t *testing.T) {
	store := newStore("services/x", "b", 1000)
	bad, good := newReceiver(t), newReceiver(t)
	s, _ := bad.sender("", store)
	s.times.shutdown = 100 * time.Millisecond
	stop := run(t, s)
	bad.settle()
	bad.hang()
	other, _ := good.sender("", store)
	defer run(t, other)()
	for i := range 20 {
		store.add(500)
		good.wait("services/x", uint64(500*(i+1)))
	}
	if all, _ := bad.lines.Get(); len(all) > 1 {
		t.Errorf("a receiver that hangs has read %d lines", len(all))
	}
	stop()
}

// TestWhoIsWho checks the authentication of both sides. The sender sends no line to a receiver with
// an untrusted certificate. If the receiver demands a certificate of the sender, the sender reports
// that, and sends lines as soon as it has a certificate.
func TestWhoIsWho(t *testing.T) {
	store := newStore("audit", "", 10)
	store.add(1)
	problem := func(r *receiver, s *Sender, events <-chan string, want string) {
		t.Helper()
		stop := run(t, s)
		select {
		case e := <-events:
			if !strings.Contains(e, want) {
				t.Errorf("%s; want: %s", e, want)
			}
		case <-time.After(testTimeout):
			t.Error("the sender has added no event within the timeout")
		}
		stop()
		if all, _ := r.lines.Get(); len(all) > 0 {
			t.Errorf("the receiver has received %v, want no lines", all)
		}
	}
	r, stranger := newReceiver(t), newReceiver(t)
	s, events := r.sender("", store)
	s.config.Address = stranger.addr
	problem(stranger, s, events, "certificate signed by unknown authority")

	r.TLS.ClientAuth = tls.RequireAnyClientCert
	s, events = r.sender("", store)
	s.times.steady = testTimeout
	problem(r, s, events, "certificate required")

	own, err := pki.SelfSigned(pki.Spec{CN: "m1", Usage: pki.Both, TTL: time.Hour})
	check(t, err)
	s, _ = r.sender("", store)
	s.config.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{own.Cert.Raw}, PrivateKey: own.Key}, nil
	}
	defer run(t, s)()
	r.wait("audit", 1)
}

// Package sender sends lines to a receiver over TLS, and repeats lines without a confirmed
// delivery.
//
// The two line formats, syslog and JSON, have no acknowledgments. A TCP acknowledgment is not
// enough: the bytes may still be unread in the socket when the receiver dies. But an orderly close
// of the connection proves delivery. The sender closes its side, the receiver reads up to the end
// and closes its own side; if any byte were unread, the receiver's kernel would reset the
// connection instead (RFC 2525, 2.17). So the sender closes each connection in order half a minute
// after its first line, and opens another. An orderly close confirms the delivery of all lines on
// the connection. The lines on a broken connection are sent again, with the same numbers.
//
// The package stores no lines. They come from stores that number their lines and drop the oldest
// ones, so the stores are also the buffers of the sender. If lines were dropped before they could
// be sent, the sender inserts a line that reports the loss.
// docs/decisions/0024-shipping.md and 0080-shipping-receipt.md give the reasons.
package sender

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/otlp"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Source gives access to the lines of one or more stores.
type Source struct {
	// Follow passes lines to the function send: first the stored lines, then each new line. It
	// omits the lines up to the number that lastSent returns for their Record.Source. It returns
	// when the context ends or send fails, with that error. send blocks while the receiver is slow.
	// Follow may call send from several goroutines, which must have ended when Follow returns.
	Follow func(ctx context.Context, lastSent func(source string) uint64, send func(Record) error) error
	// Newest returns the numbers of the newest lines, by Record.Source.
	Newest func() map[string]uint64
}

// Config configures a Sender.
type Config struct {
	Name    string // of the receiver, for messages
	Address string // host:port
	TLS     *tls.Config
	Egress  egress.Config // how the receiver is reached
	// Encode returns a record as a line. Encode is nil if the receiver gets batches.
	Encode func(Record) []byte
	// Batch, if it is not nil, returns records in the form of OTLP, which the receiver gets over
	// HTTP.
	Batch   func([]Record) *logs.LogsData
	Sources []Source
	// Cursors is a file that stores, over boots, the delivered numbers of sources with continuing
	// numbers. Its directory exists. If Cursors is empty, the sender stores no file.
	Cursors string
	// Event is called when the receiver is lost ("failure") or reached again ("state").
	Event func(kind, message string)
}

// State is the state of a Sender.
type State struct {
	Name    string `json:"name"` // of the receiver
	Address string `json:"address"`
	// start of the connection; zero without one. An orderly replacement does not change it
	Connected time.Time `json:"connected,omitzero"`
	// sent lines, repetitions included
	Sent    uint64 `json:"sent"`
	Pending uint64 `json:"waiting"` // lines not sent yet
	// lines lost before their delivery was confirmed
	Dropped uint64 `json:"dropped"`
	// records that the receiver has rejected (OTLP)
	Rejected uint64 `json:"rejected,omitempty"`
	// the last error; it stays after the recovery
	Problem string `json:"problem,omitempty"`
}

// times are the timeouts and delays of a Sender.
type times struct {
	dial        time.Duration // timeout for name resolution, connection and TLS
	write       time.Duration // timeout for a write
	closeAfter  time.Duration // time from the first line to the orderly close
	closeEarly  time.Duration // least lifetime before a close because of confirmBytes
	answer      time.Duration // timeout for the close by the receiver
	shutdown    time.Duration // timeout for the close and pending writes at the end of Run
	steady      time.Duration // lifetime after which a connection is considered good
	minBackoff  time.Duration // first delay between connection attempts
	maxBackoff  time.Duration // longest delay between connection attempts
	sourceRetry time.Duration // retry interval of a failed source
	gather      time.Duration // time from the first record of a batch to its export
	quiet       time.Duration // least time between two events about a loss
}

var defaultTimes = times{
	dial: 10 * time.Second, write: 30 * time.Second, closeAfter: 30 * time.Second, closeEarly: 5 * time.Second, answer: 30 * time.Second,
	shutdown: 2 * time.Second, steady: 10 * time.Second, minBackoff: time.Second, maxBackoff: 30 * time.Second, sourceRetry: 30 * time.Second,
	gather: time.Second, quiet: time.Minute,
}

const (
	// inFlight is the size of the kernel's send buffer for a slow receiver, in bytes.
	inFlight = 64 << 10
	// confirmBytes is the number of bytes after which the delivery is confirmed early, while the
	// stores still have the lines.
	confirmBytes = 256 << 10
	// batchSize is the number of lines that are read ahead from the stores, and the maximum in one
	// write.
	batchSize = 16
	// maxUnanswered is the number of consecutive connections without a close by the receiver after
	// which the sender assumes that the receiver never closes. A receiver that hangs does not reach
	// this number, because it accepts no new connection. But a proxy in front of the receiver may
	// accept connections. So the assumption is never made for sources with continuing numbers if
	// the receiver has ever closed in order.
	maxUnanswered = 2
)

// Sender sends to one receiver. New creates it.
type Sender struct {
	config Config
	times  times
	client *http.Client // for batches

	mu         sync.Mutex
	delivered  map[string]uint64 // delivered numbers by source
	sent       map[string]uint64 // sent numbers by source; never less than delivered
	continuing map[string]bool   // sources with numbers that continue over boots
	dropped    uint64            // lost lines up to the delivered numbers
	missed     uint64            // lost lines after the delivered numbers
	state      State

	// The fields below belong to Run.
	reported   reported
	proxied    bool    // the connection goes through a proxy
	unanswered int     // consecutive connections that the receiver did not close in order
	orderly    bool    // the receiver has closed a connection in order before
	stored     cursors // the content of the file Cursors
}

// reported is what the events about a receiver have reported so far.
type reported struct {
	health   string    // "", healthUp or healthLost: the last reported event
	lost     time.Time // of the last event with healthLost
	rejected bool      // the receiver has rejected records
}

// cursors is the stored state in JSON.
type cursors struct {
	Delivered map[string]uint64 `json:"taken"` // of sources with continuing numbers
	Orderly   bool              `json:"orderly,omitempty"`
}

// errQuiet is returned when the receiver closes a connection on which no line was sent: many
// receivers close idle connections.
var errQuiet = errors.New("the receiver closed an idle connection")

const healthUp, healthLost = "up", "lost"

// New returns a sender. The caller starts it with Run.
func New(c Config) *Sender {
	s := &Sender{config: c, times: defaultTimes, delivered: map[string]uint64{}, sent: map[string]uint64{}, continuing: map[string]bool{}, state: State{Name: c.Name, Address: c.Address}}
	if c.Batch != nil {
		s.client = s.newClient()
	}
	return s
}

// State returns the state of the sender.
func (s *Sender) State() State {
	newest := map[string]uint64{}
	for _, source := range s.config.Sources {
		maps.Copy(newest, source.Newest())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.state
	out.Dropped = s.dropped + s.missed
	for source, number := range newest {
		out.Pending += number - min(number, s.sent[source])
	}
	return out
}

// Run sends until the context ends. Then it closes its connection in order, which takes at most two
// seconds.
func (s *Sender) Run(ctx context.Context) {
	if err := s.load(); err != nil {
		s.config.Event("failure", err.Error())
	}
	for failures := 1; ; failures++ {
		err := s.deliver(ctx)
		s.mu.Lock()
		since := s.state.Connected
		s.state.Connected = time.Time{}
		s.sent, s.missed = maps.Clone(s.delivered), 0
		s.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errQuiet) {
			s.fail(err)
		}
		if !since.IsZero() && time.Since(since) >= s.times.steady {
			failures = 1
		}
		pause := backoff.Backoff{Min: s.times.minBackoff, Max: s.times.maxBackoff}.Delay(failures)
		// jitter, so that the machines of a cluster do not connect all at once
		pause = pause*2/3 + rand.N(pause/3)
		if refusal := (*otlp.Refusal)(nil); errors.As(err, &refusal) {
			pause += refusal.Wait
		}
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// fail records why there is no connection, and adds an event at most once per times.quiet: a
// receiver that is lost and reached in turns, or podlogd with requests that fail in turns, must not
// displace the other events of the machine.
func (s *Sender) fail(err error) {
	s.problem(err)
	if s.reported.health != healthLost && time.Since(s.reported.lost) >= s.times.quiet {
		s.reported.health, s.reported.lost = healthLost, time.Now()
		s.config.Event("failure", fmt.Sprintf("receiver %s: unreachable, retrying: %v", s.config.Name, err))
	}
}

func (s *Sender) problem(err error) {
	s.mu.Lock()
	s.state.Problem = err.Error()
	s.mu.Unlock()
}

// deliver sends until the receiver is lost or the context ends.
func (s *Sender) deliver(ctx context.Context) error {
	if s.config.Batch != nil {
		return s.sendBatches(ctx)
	}
	return s.stream(ctx)
}

// stream sends over a sequence of connections until a connection breaks.
func (s *Sender) stream(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.state.Connected = time.Now()
	s.mu.Unlock()
	lines, stop := s.follow(ctx)
	defer stop()
	for {
		if err := s.sendOver(ctx, conn, lines); err != nil || ctx.Err() != nil {
			return err
		}
		if conn, err = s.connect(ctx); err != nil {
			return err
		}
	}
}

// follow returns the lines of all sources, and a function that ends the reading.
func (s *Sender) follow(ctx context.Context) (<-chan Record, func()) {
	inner, stop := context.WithCancel(ctx)
	var followers sync.WaitGroup
	lines := make(chan Record, batchSize)
	for _, source := range s.config.Sources {
		followers.Go(panics.Guarded("log-shipping", func() { s.readSource(inner, source, lines) }))
	}
	return lines, func() { stop(); followers.Wait() }
}

// connect opens a connection for lines.
func (s *Sender) connect(ctx context.Context) (conn *tls.Conn, err error) {
	conn, s.proxied, err = s.dial(ctx)
	return conn, err
}

// dial connects, and reports whether the connection goes through a proxy. At its return the
// receiver has proven its identity, but it may still reject the certificate of this machine.
func (s *Sender) dial(ctx context.Context) (conn *tls.Conn, proxied bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.times.dial)
	defer cancel()
	raw, proxied, err := s.config.Egress.Dial(ctx, &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4},
	}, s.config.Address)
	if err != nil {
		return nil, proxied, fmt.Errorf("%s: cannot connect: %w", s.config.Address, err)
	}
	c := tls.Client(raw, s.config.TLS)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, proxied, errors.Join(fmt.Errorf("%s: cannot connect: %w", s.config.Address, err), raw.Close())
	}
	if raw, ok := c.NetConn().(*net.TCPConn); ok {
		if err := raw.SetWriteBuffer(inFlight); err != nil {
			return nil, proxied, errors.Join(fmt.Errorf("%s: cannot set size of send buffer: %w", s.config.Address, err), c.Close())
		}
	}
	return c, proxied, nil
}

// readSource forwards the lines of a source.
func (s *Sender) readSource(ctx context.Context, source Source, lines chan<- Record) {
	after := func(name string) uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.sent[name]
	}
	for {
		err := source.Follow(ctx, after, func(l Record) error {
			select {
			case lines <- l:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if ctx.Err() != nil {
			return
		}
		s.problem(fmt.Errorf("cannot read a source, retrying: %w", err))
		if backoff.Sleep(ctx, s.times.sourceRetry) != nil {
			return
		}
	}
}

// sendOver sends over a connection and closes it. It returns nil after an orderly close with all
// lines delivered, and errQuiet if the receiver closed the connection in order and no line was
// sent.
func (s *Sender) sendOver(ctx context.Context, conn *tls.Conn, lines <-chan Record) error {
	defer conn.Close()
	// When the context ends, all operations on the connection get a last deadline. An error means
	// that the connection is already closed.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now().Add(s.times.shutdown)) })()
	ended := make(chan error, 1)
	go func() {
		ended <- panics.Do("log-shipping", func() error {
			_, err := io.Copy(io.Discard, conn) // a receiver sends no data; only the end matters
			return err
		})
	}()
	began := time.Now()
	w := &writer{ctx: ctx, conn: conn, timeout: s.times.write}
	buffer := bufio.NewWriterSize(w, 16<<10)
	var prove <-chan time.Time
	steady := time.After(s.times.steady)
	for {
		select {
		case l := <-lines:
			if err := s.write(buffer, l, lines); err != nil {
				return s.broken(err, ended)
			}
			if prove == nil {
				prove = time.After(s.times.closeAfter)
			}
			if w.bytes < confirmBytes || time.Since(began) < s.times.closeEarly {
				continue
			}
			return s.finish(ctx, conn, ended)
		case err := <-ended:
			// errQuiet is not a failure: the event of a failure would be another line to send, and
			// the cycle would never end.
			if prove == nil && s.inOrder(err) && time.Since(began) >= s.times.steady {
				return errQuiet
			}
			return s.broken(cmp.Or(err, io.EOF), nil)
		case <-steady:
			// after a connection without an orderly close, only an orderly close shows health
			if s.unanswered == 0 {
				s.markHealthy()
			}
		case <-prove:
			return s.finish(ctx, conn, ended)
		case <-ctx.Done():
			return s.finish(ctx, conn, ended)
		}
	}
}

// inOrder reports whether the receiver has closed its side in order. err is the result of the read
// up to the end. Many receivers close without a TLS close_notify; then the absence of a TCP reset
// proves the same. Through a proxy only the close_notify is proof, because the TCP connection ends
// at the proxy.
func (s *Sender) inOrder(err error) bool {
	return err == nil || !s.proxied && errors.Is(err, io.ErrUnexpectedEOF)
}

// writer counts the written bytes and sets a write timeout.
type writer struct {
	ctx     context.Context // when it has ended, Write sets no deadline: sendOver has set the last
	conn    *tls.Conn
	timeout time.Duration
	bytes   int
}

func (w *writer) Write(text []byte) (int, error) {
	if w.ctx.Err() == nil {
		if err := w.conn.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
			return 0, err
		}
	}
	n, err := w.conn.Write(text)
	w.bytes += n
	return n, err
}

// broken returns the error for a broken connection. It prefers the result of the read, from ended,
// to the error of the write (err): the receiver may have sent the reason as a TLS alert before a
// write failed.
func (s *Sender) broken(err error, ended <-chan error) error {
	select {
	case readError := <-ended:
		err = cmp.Or(readError, err)
	default:
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: the receiver closed the connection", s.config.Address)
	}
	return fmt.Errorf("%s: the connection broke: %w", s.config.Address, err)
}

// write sends a line with the lines that wait behind it, at most batchSize lines. Without the
// limit, write would not return while the sources are faster than the receiver, and the connection
// would not be closed to confirm the delivery.
func (s *Sender) write(w *bufio.Writer, l Record, more <-chan Record) error {
	for n := 1; ; n++ {
		for _, each := range s.next(l) {
			if _, err := w.Write(s.config.Encode(each)); err != nil {
				return err
			}
		}
		if n == batchSize {
			return w.Flush()
		}
		select {
		case l = <-more:
		default:
			return w.Flush()
		}
	}
}

// next records a line as sent, and returns the lines to send: after a gap, first a line about the
// gap.
func (s *Sender) next(l Record) []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	// lines that were dropped before the first connection are not reported as missed
	if _, known := s.delivered[l.Source]; !known {
		s.delivered[l.Source], s.sent[l.Source] = l.Number-1, l.Number-1
	}
	if l.Boot == "" {
		s.continuing[l.Source] = true
	}
	last := s.sent[l.Source]
	s.sent[l.Source] = l.Number
	s.state.Sent++
	if l.Number <= last+1 {
		return []Record{l}
	}
	gap := l
	gap.Number, gap.Missed = l.Number-1, l.Number-1-last
	gap.Severity, gap.Kind, gap.Text = 4, "missed", fmt.Sprintf("lines %d to %d are missing: they were dropped before their delivery was confirmed", last+1, gap.Number)
	s.missed += gap.Missed
	return []Record{gap, l}
}

// finish closes a connection in order. It returns nil if the receiver has read all lines. It also
// returns nil if the sender assumes that the receiver never closes in order (maxUnanswered).
func (s *Sender) finish(ctx context.Context, conn *tls.Conn, ended <-chan error) error {
	wait := s.times.answer
	if ctx.Err() != nil {
		wait = s.times.shutdown
	}
	err := conn.CloseWrite() // TLS close_notify for the receiver; takes at most five seconds
	if err != nil {
		return s.broken(err, ended)
	}
	// No FIN is sent to a proxy: the proxy could close both directions before the receiver has
	// closed its side.
	if raw, ok := conn.NetConn().(*net.TCPConn); ok && !s.proxied {
		// TCP FIN for the receiver's kernel. The call fails if the receiver has closed the
		// connection already; then the select below gets the result of the read.
		_ = raw.CloseWrite()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	silent := false
	select {
	case err = <-ended:
		if s.inOrder(err) {
			s.unanswered, s.orderly = 0, true
			s.markHealthy()
			s.markDelivered()
			return nil
		}
	case <-timer.C:
		silent = true
		err = fmt.Errorf("no answer within %v", wait)
	}
	if ctx.Err() != nil {
		return err
	}
	s.unanswered++
	if !silent || s.unanswered < maxUnanswered || s.orderly && s.hasUnconfirmed() {
		return fmt.Errorf("%s: the receiver did not close the connection in order, so its lines are sent again: %w", s.config.Address, err)
	}
	s.problem(fmt.Errorf("%s: the receiver never closes a connection in order; its lines count as delivered all the same: %w", s.config.Address, err))
	s.markHealthy()
	s.markDelivered()
	return nil
}

// hasUnconfirmed reports whether lines of a source with continuing numbers were sent without a
// confirmed delivery.
func (s *Sender) hasUnconfirmed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for source := range s.continuing {
		if s.sent[source] > s.delivered[source] {
			return true
		}
	}
	return false
}

// markHealthy reports that the receiver is reached.
func (s *Sender) markHealthy() {
	if s.reported.health != healthUp {
		s.reported.health = healthUp
		s.config.Event("state", fmt.Sprintf("receiver %s: connected to %s", s.config.Name, s.config.Address))
	}
}

// markDelivered records all sent lines as delivered.
func (s *Sender) markDelivered() {
	s.mu.Lock()
	s.delivered = maps.Clone(s.sent)
	s.dropped, s.missed = s.dropped+s.missed, 0
	now := cursors{Delivered: map[string]uint64{}, Orderly: s.orderly}
	for source := range s.continuing {
		now.Delivered[source] = s.delivered[source]
	}
	s.mu.Unlock()
	if err := s.store(now); err != nil {
		s.problem(err)
	}
}

// store writes the delivered numbers of the sources with continuing numbers.
func (s *Sender) store(now cursors) error {
	if s.config.Cursors == "" || maps.Equal(now.Delivered, s.stored.Delivered) && now.Orderly == s.stored.Orderly {
		return nil
	}
	text, err := json.Marshal(now)
	if err == nil {
		err = safefile.WriteFile(s.config.Cursors, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("receiver %s: cannot store delivered numbers: %w", s.config.Name, err)
	}
	s.stored = now
	return nil
}

// load reads the stored state. Without a stored state, all lines are sent again.
func (s *Sender) load() error {
	if s.config.Cursors == "" {
		return nil
	}
	text, err := os.ReadFile(s.config.Cursors)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var last cursors
	if err == nil {
		err = json.Unmarshal(text, &last)
	}
	if err != nil {
		return fmt.Errorf("receiver %s: cannot read delivered numbers, so all lines are sent again: %w", s.config.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored, s.orderly = last, last.Orderly
	for source, number := range last.Delivered { // nil if the file contains "null"
		s.continuing[source], s.delivered[source], s.sent[source] = true, number, number
	}
	return nil
}

// Package logship sends lines to a receiver over TLS, and sends them again when nobody can say whether
// they have come.
//
// Neither form of lines has an answer. What TCP has acknowledged may still lie unread in the socket
// of a receiver that then dies. But a connection that ends in order tells: the sender ends its
// side, the receiver reads up to that end and ends its own; with something left unread, its system
// would reset the connection instead (RFC 2525, 2.17). So a connection on which something was sent
// is ended in order, and another one begun, after half a minute; what was sent on it counts as
// taken. What was sent on one that broke is sent again, with the same numbers.
//
// The package keeps no lines. They come from stores that number them, and drop the oldest by
// themselves: each store is the buffer. What is gone before it could be sent is told in a line of
// its own. docs/decisions/0024-shipping.md says why.
package logship

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
	"os"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Source gives lines of one store or of several.
type Source struct {
	// Follow calls each for every line that the store has after a number (0: all that it has) and
	// then for each new one, until the context ends or each fails, and returns that error. after
	// gives the number, by Line.Source. each waits for the receiver; it may be called from several
	// goroutines, which must have ended when Follow returns.
	Follow func(ctx context.Context, after func(source string) uint64, each func(Record) error) error
	// Newest gives the numbers of the newest lines, by Line.Source.
	Newest func() map[string]uint64
}

// Config says what goes where.
type Config struct {
	Name    string // of the receiver, in messages
	Address string // host:port
	TLS     *tls.Config
	Encode  func(Record) []byte
	Sources []Source
	// Cursors is a file that holds, over starts, what the receiver has taken of those sources whose
	// numbers go on. Its folder exists. Empty: nothing is kept.
	Cursors string
	// Event is told of a receiver that is lost ("failure") or back ("state").
	Event func(kind, message string)
}

// State is how a Sender stands.
type State struct {
	Name    string `json:"name"` // of the receiver
	Address string `json:"address"`
	// since when; zero: it is not. Connections that follow each other in order count as one
	Connected time.Time `json:"connected,omitzero"`
	// lines, counting those twice that were sent twice
	Sent    uint64 `json:"sent"`
	Pending uint64 `json:"waiting"` // lines that were not sent yet
	// lines that were gone before they could be sent for sure
	Dropped uint64 `json:"dropped"`
	// what went wrong last; kept when all is well again
	Problem string `json:"problem,omitempty"`
}

// times are the waits of a Sender.
type times struct {
	dial    time.Duration // for a connection, with the name, and TLS
	write   time.Duration // for a receiver to take what is written
	prove   time.Duration // after the first line, the connection is ended in order
	early   time.Duration // likewise, when very much was sent
	answer  time.Duration // for the receiver to end its side
	leave   time.Duration // for the same, and all that is being written, when the Sender has to end
	steady  time.Duration // a connection that has lived so long is a good one
	shorter time.Duration // pauses between tries grow from this
	longer  time.Duration // to this
	source  time.Duration // a source that failed is tried again
}

var usual = times{
	dial: 10 * time.Second, write: 30 * time.Second, prove: 30 * time.Second, early: 5 * time.Second, answer: 30 * time.Second,
	leave: 2 * time.Second, steady: 10 * time.Second, shorter: time.Second, longer: 30 * time.Second, source: 30 * time.Second,
}

const (
	// inFlight is how much of what was sent the system holds for a receiver that takes it slowly,
	// in bytes.
	inFlight = 64 << 10
	// much is how many bytes may be sent before they are proven to be taken early, while the stores
	// still have them.
	much = 256 << 10
	// queued is how many lines are taken from the stores ahead: what goes out in one write.
	queued = 16
	// impolite is how many connections in a row a receiver may leave without an answer to their end
	// until it is believed to be one that never answers, until it does. A receiver that hangs does
	// not even take that many: it lets no new connection in. But what stands before it may let them
	// in: so one that has ever answered is not believed for sources whose numbers go on.
	impolite = 2
)

// Sender sends to one receiver. Make it with New.
type Sender struct {
	config Config
	times  times

	mu      sync.Mutex
	taken   map[string]uint64 // by source, what the receiver has for sure
	sent    map[string]uint64 // likewise, what was sent since; never less than taken
	lasting map[string]bool   // the sources whose numbers go on over starts
	dropped uint64            // up to what was taken
	missed  uint64            // since
	state   State

	// Of Run alone.
	health     string // "", healthUp or healthLost, as Event was told
	unanswered int
	orderly    bool    // the receiver has ended a connection in order once
	stored     cursors // what Cursors holds
}

// cursors is what is kept over starts, as JSON.
type cursors struct {
	Taken   map[string]uint64 `json:"taken"` // by source, of those whose numbers go on
	Orderly bool              `json:"orderly,omitempty"`
}

// errQuiet is why a connection ended on which there was nothing to prove: many receivers end those
// after a while.
var errQuiet = errors.New("the receiver ended a connection that was quiet")

const healthUp, healthLost = "up", "lost"

// New makes a sender. Run lets it work.
func New(c Config) *Sender {
	return &Sender{config: c, times: usual, taken: map[string]uint64{}, sent: map[string]uint64{}, lasting: map[string]bool{}, state: State{Name: c.Name, Address: c.Address}}
}

// State is how it stands.
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

// Run sends until the context ends, and then ends its connection in order, which takes two seconds
// at most.
func (s *Sender) Run(ctx context.Context) {
	if err := s.load(); err != nil {
		s.config.Event("failure", err.Error())
	}
	for pause := s.times.shorter; ; pause = min(2*pause, s.times.longer) {
		err := s.stream(ctx)
		s.mu.Lock()
		since := s.state.Connected
		s.state.Connected = time.Time{}
		s.sent, s.missed = maps.Clone(s.taken), 0
		s.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errQuiet) {
			s.fail(err)
		}
		if !since.IsZero() && time.Since(since) >= s.times.steady {
			pause = s.times.shorter
		}
		// so that the machines of a cluster do not come all at once
		timer := time.NewTimer(pause*2/3 + rand.N(pause/3))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// fail notes why there is no connection.
func (s *Sender) fail(err error) {
	s.problem(err)
	if s.health != healthLost {
		s.health = healthLost
		s.config.Event("failure", fmt.Sprintf("receiver %s is not reached, and tried again until it is: %v", s.config.Name, err))
	}
}

func (s *Sender) problem(err error) {
	s.mu.Lock()
	s.state.Problem = err.Error()
	s.mu.Unlock()
}

// stream sends over one connection after the other, until one breaks.
func (s *Sender) stream(ctx context.Context) error {
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.state.Connected = time.Now()
	s.mu.Unlock()
	inner, stop := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer followers.Wait()
	defer stop()
	lines := make(chan Record, queued)
	for _, source := range s.config.Sources {
		followers.Go(panics.Guarded("shipping", func() { s.follow(inner, source, lines) }))
	}
	for {
		if err := s.carry(ctx, conn, lines); err != nil || ctx.Err() != nil {
			return err
		}
		if conn, err = s.dial(ctx); err != nil {
			return err
		}
	}
}

// dial connects. The receiver has proven who it is when it returns, but not yet said what it thinks
// of our certificate.
func (s *Sender) dial(ctx context.Context) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.times.dial)
	defer cancel()
	d := tls.Dialer{Config: s.config.TLS, NetDialer: &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4},
	}}
	conn, err := d.DialContext(ctx, "tcp", s.config.Address)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot connect: %w", s.config.Address, err)
	}
	c := conn.(*tls.Conn) // as tls.Dialer promises
	if raw, ok := c.NetConn().(*net.TCPConn); ok {
		if err := raw.SetWriteBuffer(inFlight); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: cannot bound what is in flight: %w", s.config.Address, err), c.Close())
		}
	}
	return c, nil
}

// follow passes a source's lines on.
func (s *Sender) follow(ctx context.Context, source Source, lines chan<- Record) {
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
		s.problem(fmt.Errorf("a source cannot be read, and is tried again: %w", err))
		timer := time.NewTimer(s.times.source)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// carry sends over a connection, and closes it. It returns nil when that was ended in order and all
// that was sent is taken, and errQuiet when the receiver ended it in order and nothing was sent.
func (s *Sender) carry(ctx context.Context, conn *tls.Conn, lines <-chan Record) error {
	defer conn.Close()
	// When all has to end, nothing waits longer for this receiver.
	// it fails for a connection that is closed
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now().Add(s.times.leave)) })()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn) // a receiver has nothing to say; only its end matters
		ended <- err
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
				prove = time.After(s.times.prove)
			}
			if w.bytes < much || time.Since(began) < s.times.early {
				continue
			}
			return s.finish(ctx, conn, ended)
		case err := <-ended:
			// It is no failure: its event would be a line to send, and so it would go on for ever.
			if prove == nil && inOrder(err) && time.Since(began) >= s.times.steady {
				return errQuiet
			}
			return s.broken(cmp.Or(err, io.EOF), nil)
		case <-steady:
			if s.unanswered == 0 { // its end is what counts
				s.well()
			}
		case <-prove:
			return s.finish(ctx, conn, ended)
		case <-ctx.Done():
			return s.finish(ctx, conn, ended)
		}
	}
}

// inOrder tells whether a receiver has ended its side, by what reading from it said. Many just
// close, without TLS's end; that their system has not reset the connection says the same.
func inOrder(err error) bool { return err == nil || errors.Is(err, io.ErrUnexpectedEOF) }

// writer counts what is written, and gives the receiver some time to take it.
type writer struct {
	ctx     context.Context // when it has ended, the connection has its last deadline
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

// broken says why a connection broke. A write only sees that it is gone; why, the receiver may have
// said before (TLS alerts).
func (s *Sender) broken(err error, ended <-chan error) error {
	select {
	case said := <-ended:
		err = cmp.Or(said, err)
	default:
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: the receiver closed the connection", s.config.Address)
	}
	return fmt.Errorf("%s: the connection broke: %w", s.config.Address, err)
}

// write sends a line, and those that wait behind it, together: at most queued, because who follows
// the stores may be faster than the receiver for ever, and a connection has to be proved (prove)
// all the same.
func (s *Sender) write(w *bufio.Writer, l Record, more <-chan Record) error {
	for n := 1; ; n++ {
		for _, each := range s.next(l) {
			if _, err := w.Write(s.config.Encode(each)); err != nil {
				return err
			}
		}
		if n == queued {
			return w.Flush()
		}
		select {
		case l = <-more:
		default:
			return w.Flush()
		}
	}
}

// next notes a line as sent, and returns what to send: before the line another one if there is a
// gap.
func (s *Sender) next(l Record) []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	// what was gone before the receiver was known is not missed
	if _, known := s.taken[l.Source]; !known {
		s.taken[l.Source], s.sent[l.Source] = l.Number-1, l.Number-1
	}
	if l.Boot == "" {
		s.lasting[l.Source] = true
	}
	last := s.sent[l.Source]
	s.sent[l.Source] = l.Number
	s.state.Sent++
	if l.Number <= last+1 {
		return []Record{l}
	}
	gap := l
	gap.Number, gap.Missed = l.Number-1, l.Number-1-last
	gap.Severity, gap.Kind, gap.Text = 4, "missed", fmt.Sprintf("lines %d to %d are missing: they were not kept until they could be sent for sure", last+1, gap.Number)
	s.missed += gap.Missed
	return []Record{gap, l}
}

// finish ends a connection in order. Nil means that the receiver has read all of it.
func (s *Sender) finish(ctx context.Context, conn *tls.Conn, ended <-chan error) error {
	wait := s.times.answer
	if ctx.Err() != nil {
		wait = s.times.leave
	}
	err := conn.CloseWrite() // TLS's end, for the receiver; it takes five seconds at most
	if err != nil {
		return s.broken(err, ended)
	}
	if raw, ok := conn.NetConn().(*net.TCPConn); ok {
		// TCP's, for its system. It fails where that was quicker; what it has said comes below
		_ = raw.CloseWrite()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	silent := false
	select {
	case err = <-ended:
		if inOrder(err) {
			s.unanswered, s.orderly = 0, true
			s.well()
			s.take()
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
	if !silent || s.unanswered < impolite || s.orderly && s.owes() {
		return fmt.Errorf("%s: the receiver did not end the connection in order, so what was sent over it is sent again: %w", s.config.Address, err)
	}
	s.problem(fmt.Errorf("%s: the receiver never ends a connection in order; what was sent over it counts as taken all the same: %w", s.config.Address, err))
	s.well()
	s.take()
	return nil
}

// owes tells whether lines of a source whose numbers go on were sent and are not taken.
func (s *Sender) owes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for source := range s.lasting {
		if s.sent[source] > s.taken[source] {
			return true
		}
	}
	return false
}

// well notes a good connection.
func (s *Sender) well() {
	if s.health != healthUp {
		s.health = healthUp
		s.config.Event("state", fmt.Sprintf("receiver %s is reached at %s", s.config.Name, s.config.Address))
	}
}

// take notes that all that was sent is taken.
func (s *Sender) take() {
	s.mu.Lock()
	s.taken = maps.Clone(s.sent)
	s.dropped, s.missed = s.dropped+s.missed, 0
	now := cursors{Taken: map[string]uint64{}, Orderly: s.orderly}
	for source := range s.lasting {
		now.Taken[source] = s.taken[source]
	}
	s.mu.Unlock()
	if err := s.store(now); err != nil {
		s.problem(err)
	}
}

// store writes what the receiver has taken of the sources whose numbers go on.
func (s *Sender) store(now cursors) error {
	if s.config.Cursors == "" || maps.Equal(now.Taken, s.stored.Taken) && now.Orderly == s.stored.Orderly {
		return nil
	}
	text, err := json.Marshal(now)
	if err == nil {
		err = durable.WriteFile(s.config.Cursors, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot note what receiver %s has: %w", s.config.Name, err)
	}
	s.stored = now
	return nil
}

// load reads it. Without it all is sent again.
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
		return fmt.Errorf("cannot read what receiver %s has, so all is sent again: %w", s.config.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored, s.orderly = last, last.Orderly
	for source, number := range last.Taken { // none in a file that holds "null"
		s.lasting[source], s.taken[source], s.sent[source] = true, number, number
	}
	return nil
}

package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// writeTimeout bounds the write of a message. The session ends if the peer does not read for this
// time.
const writeTimeout = 5 * time.Second

// Routes provides the wanted routes; a cell.Watcher implements it.
type Routes interface {
	Current() []netip.Prefix
	Changed() <-chan struct{} // closed or readable after a change
}

// Hooks are the callbacks of a session, and its clock. The session waits for the return of each
// callback. Each field may be nil.
type Hooks struct {
	State  func(State)
	Update func(from Open, u Update) // only with Config.Receives
	Clock  Clock                     // nil: the system clock
}

// Clock is a clock that can run at another speed than the system clock, such as vm.Clock in tests.
type Clock interface {
	Now() time.Time
	Outside(time.Duration) time.Duration // the same duration on the system clock
}

type systemClock struct{}

func (systemClock) Now() time.Time                        { return time.Now() }
func (systemClock) Outside(d time.Duration) time.Duration { return d }

// Serve runs a session on a connection and closes it. It announces the routes until ctx is done.
// Then it sends a notification that ends the session, and the peer drops the routes at once. The
// error states why the session ended.
func Serve(ctx context.Context, conn net.Conn, c Config, routes Routes, h Hooks) error {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if h.Clock == nil {
		h.Clock = systemClock{}
	}
	r := &running{conn: conn, hooks: h}
	first, out := begin(c, h.Clock.Now())
	r.session = first
	if err := r.send(out); err != nil {
		return err
	}
	messages, failed := make(chan Message), make(chan error, 1)
	opened := make(chan bool, 1) // after an open message: Open.FourOctets
	go func() { failed <- listen(ctx, conn, c.Receives, messages, opened) }()
	for {
		wait := time.NewTimer(h.Clock.Outside(r.session.next().Sub(h.Clock.Now())))
		err := r.step(ctx, routes, wait, messages, failed, opened)
		wait.Stop()
		if err != nil {
			return r.end(err)
		}
	}
}

// running is a session with its connection.
type running struct {
	conn    net.Conn
	session session
	hooks   Hooks
	state   State // last value that hooks.State got
}

// listen reads messages and sends them to step until the connection ends. After an open message it
// waits for a value of opened, which states the length of AS numbers in later messages of the peer.
func listen(ctx context.Context, conn io.Reader, receives bool, messages chan<- Message, opened <-chan bool) error {
	fourOctets := true
	for {
		m, err := read(conn, receives, fourOctets)
		if err != nil {
			return err
		}
		select {
		case messages <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
		if m.Kind == OpenMessage {
			select {
			case fourOctets = <-opened:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// step waits for an event and handles it.
func (r *running) step(ctx context.Context, routes Routes, wait *time.Timer, messages <-chan Message, failed <-chan error, opened chan<- bool) (err error) {
	var out []Message
	select {
	case m := <-messages:
		if r.session, out, err = r.session.receive(r.hooks.Clock.Now(), m); err != nil {
			return err
		}
		switch {
		case m.Kind == OpenMessage:
			opened <- r.session.peer.FourOctets
		case m.Kind == UpdateMessage && r.session.Receives && r.hooks.Update != nil:
			r.hooks.Update(r.session.peer, m.Update)
		}
	case <-wait.C:
		if r.session, out, err = r.session.tick(r.hooks.Clock.Now()); err != nil {
			return err
		}
	case <-routes.Changed():
	case err := <-failed:
		return err
	case <-ctx.Done():
		return &failure{adminShutdown, context.Cause(ctx)}
	}
	next, updates := r.session.advertise(routes.Current())
	r.session = next
	if err := r.send(append(out, updates...)); err != nil {
		return err
	}
	if r.state != r.session.state && r.hooks.State != nil {
		r.hooks.State(r.session.state)
	}
	r.state = r.session.state
	return nil
}

func (r *running) send(all []Message) error {
	for _, m := range all {
		b, err := m.encode(r.session.internal(), r.session.peer.FourOctets)
		if err != nil {
			return err
		}
		if err := r.conn.SetWriteDeadline(time.Now().Add(r.hooks.Clock.Outside(writeTimeout))); err != nil {
			return fmt.Errorf("cannot send to the peer: %w", err)
		}
		if _, err := r.conn.Write(b); err != nil {
			return fmt.Errorf("cannot send to the peer: %w", err)
		}
	}
	return nil
}

// end sends the notification of a failure to the peer. It returns err, and the error of the
// sending.
func (r *running) end(err error) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	return errors.Join(f.err, r.send([]Message{{Kind: NotificationMessage, Notification: f.send}}))
}

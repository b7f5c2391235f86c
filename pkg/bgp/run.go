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

// writeTimeout bounds the write of a message: a peer that reads nothing is a lost peer.
const writeTimeout = 5 * time.Second

// Routes are the wanted routes, such as a watcher of a cell.
type Routes interface {
	Current() []netip.Prefix
	Changed() <-chan struct{} // closed or readable after a change
}

// Hooks are the outputs of a session; each may be nil. The session waits for their return.
type Hooks struct {
	State  func(State)
	Update func(from Open, u Update) // only with Config.Receives
	Clock  Clock                     // nil: the computer's
}

// Clock is a clock that can differ from the computer's, as vm.Clock.
type Clock interface {
	Now() time.Time
	Outside(time.Duration) time.Duration // the same time on the computer's clock
}

type computer struct{}

func (computer) Now() time.Time                        { return time.Now() }
func (computer) Outside(d time.Duration) time.Duration { return d }

// Serve runs a session on a connection and closes it. It announces the routes until ctx
// is done, and then tells the peer that the session ends: the peer drops the routes at once. The
// error states why the session ended.
func Serve(ctx context.Context, conn net.Conn, c Config, routes Routes, h Hooks) error {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if h.Clock == nil {
		h.Clock = computer{}
	}
	r := &running{conn: conn, hooks: h}
	first, out := begin(c, h.Clock.Now())
	r.session = first
	if err := r.send(out); err != nil {
		return err
	}
	heard, failed := make(chan Message), make(chan error, 1)
	opened := make(chan bool, 1) // whether the peer knows AS numbers of four octets
	go func() { failed <- listen(ctx, conn, c.Receives, heard, opened) }()
	for {
		wait := time.NewTimer(h.Clock.Outside(r.session.next().Sub(h.Clock.Now())))
		err := r.step(ctx, routes, wait, heard, failed, opened)
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
	state   State // as told
}

// listen reads messages until the connection ends.
func listen(ctx context.Context, conn io.Reader, receives bool, heard chan<- Message, opened <-chan bool) error {
	fourOctets := true
	for {
		m, err := read(conn, receives, fourOctets)
		if err != nil {
			return err
		}
		select {
		case heard <- m:
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
func (r *running) step(ctx context.Context, routes Routes, wait *time.Timer, heard <-chan Message, failed <-chan error, opened chan<- bool) (err error) {
	var out []Message
	select {
	case m := <-heard:
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
		return &failure{administrator, context.Cause(ctx)}
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

// end sends the reason of a failure to the peer.
func (r *running) end(err error) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	return errors.Join(f.err, r.send([]Message{{Kind: NotificationMessage, Notification: f.send}}))
}

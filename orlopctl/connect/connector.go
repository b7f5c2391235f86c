// Package connect connects to the machines that the flags and the contexts select: to a single
// machine, or to all machines of a fleet, also through a relay. It renews the certificate of a
// context when the certificate is due for renewal.
//
// The package does not know the commands. It prints only the errors of a renewal.
package connect

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/client"
)

// Connector connects to the machines that the flags and the contexts select.
type Connector struct {
	ios   *iostreams.Streams
	Flags Flags
	// relay is the connection to the relay. It is set only for a machine of --nodes.
	relay *Relay
	node  string // the machine behind the relay
	// stay records which of several endpoints the command has used first. The command continues to
	// use this endpoint, because the operation runs on that machine.
	stay *client.ConnPool
	// Recorder records guarded calls in place of sending them; nil: they are sent.
	Recorder *Recorder
}

// New returns a connector without flags. Flags.Register adds the flags to a command.
func New(ios *iostreams.Streams) *Connector { return &Connector{ios: ios} }

// NewRelayed returns a connector to a machine behind a relay.
func NewRelayed(ios *iostreams.Streams, relay *Relay, node string) *Connector {
	return &Connector{ios: ios, relay: relay, node: node}
}

// Relayed reports whether the connector reaches the machine through a relay.
func (conn *Connector) Relayed() bool { return conn.relay != nil }

// CloseRelay closes the connection to the relay, if it is open. The next call connects again.
func (conn *Connector) CloseRelay() {
	if conn.relay != nil {
		conn.relay.Close()
	}
}

// ForContext returns a connector with the same flags, but for another context.
func (conn *Connector) ForContext(name string, ios *iostreams.Streams) *Connector {
	other := &Connector{ios: ios, Flags: conn.Flags}
	other.Flags.Context = name
	return other
}

// Machine returns the machine that the flags and the contexts select.
func (conn *Connector) Machine() (client.Endpoint, error) {
	_, _, e, err := conn.Called()
	return e, err
}

// Called returns the endpoint of the selected machine, like Machine, and also the context with its
// name.
func (conn *Connector) Called() (name string, chosen contexts.Context, e client.Endpoint, err error) {
	if conn.relay != nil {
		return "", contexts.Context{}, conn.relay.endpointOf(conn.node), nil
	}
	if name, chosen, err = conn.Chosen(); err != nil {
		return name, chosen, e, err
	}
	chosen = conn.signAgain(name, chosen)
	e, err = chosen.Client()
	if conn.stay == nil {
		conn.stay = new(client.ConnPool)
	}
	e.Pool = conn.stay
	if err == nil {
		e.BeforeCall, err = conn.beforeCall()
	}
	return name, chosen, e, err
}

// Chosen returns the selected context with its name. The values of the flags replace the values of
// the context.
func (conn *Connector) Chosen() (string, contexts.Context, error) {
	file, err := contexts.Load()
	if err != nil {
		return "", contexts.Context{}, err
	}
	name := conn.Flags.Context
	if name == "" {
		name = file.Current
	}
	chosen, known := file.Contexts[name]
	if conn.Flags.Context != "" && !known {
		return "", contexts.Context{}, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("context %q: cannot use: it does not exist", name), Hint: "`orlopctl config contexts` lists them"}
	}
	chosen, err = conn.Overlay(chosen)
	return name, chosen, err
}

// Timeout returns the value of --timeout. Without the flag, it returns usual, the default of the
// command.
func (conn *Connector) Timeout(usual time.Duration) time.Duration {
	if conn.Flags.Timeout > 0 {
		return conn.Flags.Timeout
	}
	return usual
}

// Call connects, makes a call that returns immediately, and disconnects.
func (conn *Connector) Call(do func(context.Context, *client.Client) error) error {
	return conn.CallFor(0, do)
}

// CallFor does the same as Call, for an operation that takes up to the time work on the machine,
// for example an hour for a drain. The time limit for the connection is the same as in Call, so
// CallFor reports an unreachable machine just as soon.
func (conn *Connector) CallFor(work time.Duration, do func(context.Context, *client.Client) error) error {
	ctx, stop := Interruptible()
	defer stop()
	dial, total := conn.limits(work)
	ctx, cancel := context.WithTimeout(ctx, total)
	defer cancel()
	dialing, cancel := context.WithTimeout(ctx, dial)
	defer cancel()
	return conn.Connect(dialing, ctx, do)
}

// limits returns the time limits for the connection and for the whole call. --timeout replaces
// both.
func (conn *Connector) limits(work time.Duration) (dial, total time.Duration) {
	dial = conn.Timeout(DefaultTimeout)
	return dial, conn.Timeout(work + dial)
}

// Stream connects within DefaultTimeout and makes a call of unlimited duration. The call ends by
// itself, with Ctrl-C, or after --timeout if the flag is set. Ctrl-C is no error.
func (conn *Connector) Stream(do func(context.Context, *client.Client) error) error {
	ctx, stop := Interruptible()
	defer stop()
	if conn.Flags.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, conn.Flags.Timeout)
		defer cancel()
	}
	dialing, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	err := conn.Connect(dialing, ctx, do)
	if ctx.Err() == context.Canceled {
		return nil // Ctrl-C is the normal end of a stream
	}
	return err
}

// Connect makes a call. dialing bounds the connection, and calling bounds the call.
func (conn *Connector) Connect(dialing, calling context.Context, do func(context.Context, *client.Client) error) error {
	name, chosen, endpoint, err := conn.Called()
	if err != nil {
		return err
	}
	return Do(dialing, endpoint, func(c *client.Client) error {
		conn.KeepFresh(dialing, c, name, chosen)
		return do(calling, c)
	})
}

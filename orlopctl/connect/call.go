package connect

import (
	"context"
	"errors"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/orlop-os/orlop/pkg/client"
)

// DefaultTimeout bounds calls that return immediately.
const DefaultTimeout = 30 * time.Second

// ApplyTimeout bounds an apply. A first configuration formats disks, which takes minutes on a slow
// machine.
const ApplyTimeout = 5 * time.Minute

const (
	// DialTimeout bounds an attempt to connect during the wait for a machine that boots.
	DialTimeout = 10 * time.Second
	// DialInterval is the delay between two attempts to connect.
	DialInterval = 500 * time.Millisecond
)

// Interruptible returns a context that ends with Ctrl-C (SIGINT) or SIGTERM.
func Interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

// Do connects, calls `do` with the connection, and disconnects. The context `dialing` bounds only
// the attempt to connect.
func Do(dialing context.Context, e client.Endpoint, do func(*client.Client) error) error {
	c, err := client.Dial(dialing, e)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // no more data is sent
	return do(c)
}

// Attempt makes a single attempt to connect, bounded by DialTimeout, and calls `do` with the
// connection. The context that `do` receives also ends after DialTimeout.
func Attempt(ctx context.Context, endpoint client.Endpoint, do func(dialing context.Context, c *client.Client) error) error {
	dialing, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	return Do(dialing, endpoint, func(c *client.Client) error { return do(dialing, c) })
}

// Each calls `do` for each message of a stream, until the stream ends. It returns the first error
// of the stream or of `do`.
func Each[T any](recv func() (T, error), do func(T) error) error {
	for {
		value, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(value); err != nil {
			return err
		}
	}
}

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

// ApplyTimeout bounds one apply. A first configuration formats disks, and this is slow on a slow
// machine.
const ApplyTimeout = 5 * time.Minute

const (
	// DialTimeout bounds one attempt to connect during the wait for a machine that boots.
	DialTimeout = 10 * time.Second
	// DialInterval is the interval between two attempts.
	DialInterval = 500 * time.Millisecond
)

// Interruptible returns a context that ends with Ctrl-C.
func Interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

// Do connects, passes the connection to do, and disconnects.
func Do(dialing context.Context, e client.Endpoint, do func(*client.Client) error) error {
	c, err := client.Dial(dialing, e)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // no more data is sent
	return do(c)
}

// Attempt makes one of several attempts to connect, and passes the connection to do. The context
// for do ends with the time limit of the attempt.
func Attempt(ctx context.Context, endpoint client.Endpoint, do func(dialing context.Context, c *client.Client) error) error {
	dialing, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	return Do(dialing, endpoint, func(c *client.Client) error { return do(dialing, c) })
}

// Each passes each message of a stream to do, until the stream ends.
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

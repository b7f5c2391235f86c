package api

import (
	"context"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/limits"
)

// pollInterval is the interval at which Watch reads a polled topic again. The values of these
// topics (memory, processes) come from the kernel and change all the time, so Watch cannot wait for
// a change.
const pollInterval = 2 * time.Second

// Topic is a part of the machine's state that clients get or watch under its name. The package that
// owns the value makes the topic; the topic holds no value itself.
type Topic struct {
	Name string
	// Get returns the present value and its revision.
	Get func(context.Context) (any, uint64, error)
	// Next waits for a revision newer than seen.
	Next func(ctx context.Context, seen uint64) error
}

// WatchedTopic is a topic with its value in a cell.
func WatchedTopic[T any](name string, c *cell.Cell[T]) Topic {
	return Topic{
		Name: name,
		Get:  func(context.Context) (any, uint64, error) { v, rev := c.Get(); return v, rev, nil },
		Next: func(ctx context.Context, seen uint64) error {
			for w := c.Watch(); ; {
				if _, rev, err := w.Next(ctx); err != nil || rev > seen {
					return err
				}
			}
		},
	}
}

// readTimeout bounds a read of a polled topic. If a disk or a device does not answer within this
// time, the read fails. It is shorter than the usual timeout of a client. A read usually takes less
// than a second.
const readTimeout = 15 * time.Second

// PolledTopic is a topic that reads its value on every Get. Its revision is the time in
// milliseconds since 1970.
func PolledTopic[T any](name string, read func(context.Context) (T, error)) Topic {
	limit := new(limits.Bounded)
	return Topic{
		Name: name,
		Get: func(ctx context.Context) (any, uint64, error) {
			v, err := limits.Read(ctx, limit, "topic "+name, readTimeout, read)
			return v, uint64(time.Now().UnixMilli()), err
		},
		Next: func(ctx context.Context, _ uint64) error {
			t := time.NewTimer(pollInterval)
			defer t.Stop()
			select {
			case <-t.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}
}

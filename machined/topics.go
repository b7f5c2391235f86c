package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/orlop-os/orlop/pkg/cell"
)

// topicPollInterval is the interval at which a watched topic is read again if its value comes from
// the kernel. These topics (memory, processes) change all the time, so there is no change to wait
// for.
const topicPollInterval = 2 * time.Second

// topic is an observable part of the machine's state, under its API name.
type topic struct {
	name string
	// get returns the present value and its revision.
	get func(context.Context) (any, uint64, error)
	// next waits for a revision newer than seen.
	next func(ctx context.Context, seen uint64) error
}

// watchedTopic is a topic with its value in a cell.
func watchedTopic[T any](name string, c *cell.Cell[T]) topic {
	return topic{
		name: name,
		get:  func(context.Context) (any, uint64, error) { v, rev := c.Get(); return v, rev, nil },
		next: func(ctx context.Context, seen uint64) error {
			for w := c.Watch(); ; {
				if _, rev, err := w.Next(ctx); err != nil || rev > seen {
					return err
				}
			}
		},
	}
}

// polledTopic is a topic that reads its value on every Get. Its revision is the time in
// milliseconds since 1970.
func polledTopic[T any](name string, read func(context.Context) (T, error)) topic {
	return topic{
		name: name,
		get: func(ctx context.Context) (any, uint64, error) {
			v, err := read(ctx)
			return v, uint64(time.Now().UnixMilli()), err
		},
		next: func(ctx context.Context, _ uint64) error {
			t := time.NewTimer(topicPollInterval)
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

// toValue converts the value of a topic to the API's form by way of its JSON tags.
func toValue(v any) (*structpb.Value, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("cannot encode: %w", err)
	}
	out := new(structpb.Value)
	if err := out.UnmarshalJSON(b); err != nil {
		return nil, fmt.Errorf("cannot encode: %w", err)
	}
	return out, nil
}

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/orlop-os/orlop/pkg/api"
)

func (s machineService) Get(ctx context.Context, r *api.GetRequest) (*api.TopicValue, error) {
	if r.Topic == "" {
		return &api.TopicValue{Topics: s.topicNames()}, nil
	}
	t, err := s.topic(r.Topic)
	if err != nil {
		return nil, err
	}
	return valueOf(ctx, t)
}

func (s machineService) Watch(r *api.GetRequest, stream grpc.ServerStreamingServer[api.TopicValue]) error {
	t, err := s.topic(r.Topic)
	if err != nil {
		return err
	}
	for {
		v, err := valueOf(stream.Context(), t)
		if err != nil {
			return err
		}
		if err := stream.Send(v); err != nil {
			return err
		}
		if err := t.Next(stream.Context(), v.Revision); err != nil {
			return status.FromContextError(err).Err()
		}
	}
}

func (s machineService) topicNames() []string {
	var names []string
	for _, t := range s.deps.Topics {
		names = append(names, t.Name)
	}
	return names
}

func (s machineService) topic(name string) (Topic, error) {
	for _, t := range s.deps.Topics {
		if t.Name == name {
			return t, nil
		}
	}
	return Topic{}, status.Errorf(codes.NotFound, "state: topic %q does not exist; topics: %s", name, strings.Join(s.topicNames(), ", "))
}

// valueOf reads a topic.
func valueOf(ctx context.Context, t Topic) (*api.TopicValue, error) {
	v, rev, err := t.Get(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "state: cannot read topic %s: %v", t.Name, err)
	}
	value, err := toValue(v)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "state: topic %s: %v", t.Name, err)
	}
	return &api.TopicValue{Topic: t.Name, Revision: rev, Value: value}, nil
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

package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Read runs a command of the orchestrator that changes nothing and has no rules of its own. The
// command reads request (nil: none), and Read decodes its answer into answer.
func (k *Manager) Read(ctx context.Context, command string, request, answer proto.Message) error {
	if err := k.check(); err != nil {
		return err
	}
	return commandError(run(ctx, k.deps.ReadCommand, command, request, answer))
}

// Change runs a command of the orchestrator that changes etcd and has no rules of its own. The
// command reads request (nil: none), and Change decodes its answer into answer. After a success it
// adds an event with the text that event returns (nil: no event).
func (k *Manager) Change(ctx context.Context, command string, request, answer proto.Message, event func() string) error {
	if err := k.check(); err != nil {
		return err
	}
	ctx, cancel := limits.Within(ctx, k.deps.Stopping, dataTimeout)
	defer cancel()
	if err := run(ctx, k.deps.Command, command, request, answer); err != nil {
		return commandError(err)
	}
	if event != nil {
		k.deps.Event("etcd", "operation", event())
	}
	return nil
}

// commandError is the status of a failed command; nil if it succeeded.
func commandError(err error) error {
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}

// run runs a command of the orchestrator that answers with a message of the API, and ignores
// unknown fields of the answer. The request is a message, too, or another value in JSON.
func run(ctx context.Context, start nodespec.Command, command string, request any, answer proto.Message, files ...*os.File) error {
	if m, ok := request.(proto.Message); ok {
		text, err := protojson.Marshal(m)
		if err != nil {
			return fmt.Errorf("orchestrator: cannot encode the request of %s: %w", command, err)
		}
		request = json.RawMessage(text)
	}
	text, err := start(ctx, paths.UserAPI, command, request, files...)
	if err != nil {
		return err
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the orchestrator's answer to %s cannot be read: %w", command, err)
	}
	return nil
}

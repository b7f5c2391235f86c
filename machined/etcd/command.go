package etcd

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Read runs a command of the orchestrator that changes nothing and for which this package has no
// rules. The command reads request (nil: none), and Read decodes its answer into answer.
func (k *Manager) Read(ctx context.Context, command string, request, answer proto.Message) error {
	if err := k.check(); err != nil {
		return err
	}
	return commandError(nodespec.RunInto(ctx, k.deps.ReadCommand, paths.UserAPI, command, request, answer))
}

// Change runs a command of the orchestrator that changes etcd and for which this package has no
// rules. The command reads request (nil: none), and Change decodes its answer into answer. After a
// success, Change adds an event with the text that the function event returns (nil: no event).
func (k *Manager) Change(ctx context.Context, command string, request, answer proto.Message, event func() string) error {
	if err := k.check(); err != nil {
		return err
	}
	ctx, cancel := limits.Within(ctx, k.deps.Stopping, dataTimeout)
	defer cancel()
	if err := nodespec.RunInto(ctx, k.deps.Command, paths.UserAPI, command, request, answer); err != nil {
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

package machineobject

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
)

// machined is the connection to machined.
type machined struct {
	client api.MachineObjectClient
	state  *cell.Cell[observed]
}

// observed is the state of the machine.
type observed struct {
	state   *api.ObjectState // nil: unknown
	problem string           // why it is unknown
}

// dialMachined connects to machined's socket, at first use.
func dialMachined(socket string) (*machined, func(), error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, fmt.Errorf("machined: cannot connect: %w", err)
	}
	// no data is lost
	return newMachined(api.NewMachineObjectClient(conn)), func() { _ = conn.Close() }, nil
}

func newMachined(client api.MachineObjectClient) *machined {
	return &machined{client: client, state: cell.New(observed{problem: "waiting for machined"})}
}

// watch stores the state of the machine until ctx is done, and calls changed after each change.
func (m *machined) watch(ctx context.Context, changed func()) {
	for {
		err := m.receive(ctx, changed)
		m.state.Set(observed{problem: "machined: " + status.Convert(err).Message()})
		changed()
		if backoff.Sleep(ctx, retryInterval) != nil {
			return
		}
	}
}

// receive stores the states of a stream, until the stream ends.
func (m *machined) receive(ctx context.Context, changed func()) error {
	stream, err := m.client.Watch(ctx, &api.WatchObjectRequest{})
	if err != nil {
		return err
	}
	for {
		state, err := stream.Recv()
		if err != nil {
			return err
		}
		m.state.Set(observed{state: state})
		changed()
	}
}

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

// machined is the client of machined, with the last state that machined has sent.
type machined struct {
	client api.MachineObjectClient
	state  *cell.Cell[observed]
}

// observed is the last known state of the machine.
type observed struct {
	state   *api.ObjectState // nil: the state is unknown because of problem
	problem string           // why the state is unknown, or empty
}

// dialMachined returns a client of the socket of machined, and a function that closes the
// connection. The client connects at its first call.
func dialMachined(socket string) (*machined, func(), error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, fmt.Errorf("machined: cannot connect: %w", err)
	}
	// an error of Close loses no data
	return newMachined(api.NewMachineObjectClient(conn)), func() { _ = conn.Close() }, nil
}

func newMachined(client api.MachineObjectClient) *machined {
	return &machined{client: client, state: cell.New(observed{problem: "waiting for machined"})}
}

// watch stores each state that machined sends, until ctx is done, and calls changed after each one.
// If the stream ends, watch stores the error as the problem and tries again after retryInterval.
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

// receive stores each state of one stream and calls changed. It returns the error that ended the
// stream.
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

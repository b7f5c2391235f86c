package nodespec

import (
	"context"
	"fmt"
	"os"
)

// Names of the services that machined supervises, and of machined itself.
const (
	ServiceApid        = "apid"
	ServiceMachined    = "machined" // PID 1 itself, not a service
	ServiceMetrics     = "metricsd"
	ServicePodLogs     = "podlogd"
	ServiceContainerd  = "containerd"
	ServiceNode        = "orchestrator-node"
	ServiceAPI         = "orchestrator-api"
	ServiceControllers = "orchestrator-controllers"
)

// Command runs a command of the orchestrator in its own process, and returns its standard output.
// uid is the user of the process; 0 is root. request is the input of the command (Encode); nil
// means no input. The process gets files as descriptors from 3 on. The package comment of the
// orchestrator lists the commands with their input and output.
type Command func(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error)

// Run runs a command and decodes its output as JSON into a value of type A. For a message of the
// API, use RunInto.
func Run[A any](ctx context.Context, run Command, uid uint32, command string, request any, files ...*os.File) (answer A, err error) {
	err = RunInto(ctx, run, uid, command, request, &answer, files...)
	return answer, err
}

// RunInto runs a command and decodes its output into answer, which is a message of the API or a
// pointer to another value. It ignores unknown fields.
func RunInto(ctx context.Context, run Command, uid uint32, command string, request, answer any, files ...*os.File) error {
	text, err := run(ctx, uid, command, request, files...)
	if err != nil {
		return err
	}
	if err := decode(text, answer); err != nil {
		return fmt.Errorf("the orchestrator's answer to %s cannot be read: %w", command, err)
	}
	return nil
}

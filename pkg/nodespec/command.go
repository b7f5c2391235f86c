package nodespec

import (
	"context"
	"fmt"
	"os"
)

// Names of the services that machined supervises.
const (
	ServiceApid        = "apid"
	ServiceMachined    = "machined" // not a service: PID 1 itself
	ServiceMetrics     = "metricsd"
	ServicePodLogs     = "podlogd"
	ServiceContainerd  = "containerd"
	ServiceNode        = "orchestrator-node"
	ServiceAPI         = "orchestrator-api"
	ServiceControllers = "orchestrator-controllers"
)

// Command runs a command of the orchestrator in a process of its own as user uid (0: root), with
// request as its input (nil: none; see Encode), and returns its standard output. The package
// comment of the orchestrator lists the commands with their input and output. The process gets
// files as descriptors from 3 on.
type Command func(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error)

// Run runs a command and decodes its answer, which is no message of the API.
func Run[A any](ctx context.Context, run Command, uid uint32, command string, request any, files ...*os.File) (answer A, err error) {
	err = RunInto(ctx, run, uid, command, request, &answer, files...)
	return answer, err
}

// RunInto runs a command and decodes its answer into a message of the API, or into another value by
// its pointer. It ignores unknown fields of the answer.
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

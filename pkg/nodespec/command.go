package nodespec

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// Names of the services that machined supervises.
const (
	ServiceApid        = "apid"
	ServiceContainerd  = "containerd"
	ServiceNode        = "orchestrator-node"
	ServiceAPI         = "orchestrator-api"
	ServiceControllers = "orchestrator-controllers"
)

// Command runs a command of the orchestrator in a process of its own as user uid (0: root), with
// request as its input in JSON (nil: none), and returns its standard output. The package comment of
// the orchestrator lists the commands with their input and output. The process gets files as
// descriptors from 3 on.
type Command func(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error)

// Run runs a command and decodes its answer.
func Run[A any](ctx context.Context, run Command, uid uint32, command string, request any, files ...*os.File) (answer A, err error) {
	text, err := run(ctx, uid, command, request, files...)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("the orchestrator's answer to %s cannot be read: %w", command, err)
	}
	return answer, nil
}

package notify

import (
	"fmt"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// FromEnv returns a Writer to the pipe that this process has inherited. If it has inherited none,
// FromEnv returns nil; a nil Writer sends nothing. Call FromEnv once, before the process starts
// children.
func FromEnv() (*Writer, error) {
	pipe, err := safefile.Inherited(Env)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	if pipe == nil {
		return nil, nil
	}
	return NewWriter(pipe), nil
}

package notify

import (
	"fmt"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// FromEnv returns a Writer to the pipe in the environment. Without this variable it returns nil,
// which is a Writer that sends nothing. Call it once, early.
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

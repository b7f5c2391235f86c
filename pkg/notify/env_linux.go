package notify

import (
	"fmt"

	"github.com/orlop-os/orlop/pkg/fdpass"
)

// FromEnv returns a Writer to the pipe that the environment names, or nil (which is a Writer that
// sends nothing) when it names none. Call it once, early.
func FromEnv() (*Writer, error) {
	pipe, err := fdpass.File(Env)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	if pipe == nil {
		return nil, nil
	}
	return NewWriter(pipe), nil
}

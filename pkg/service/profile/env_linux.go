package profile

import (
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// FromEnv serves profiles on the socket in the environment until the process exits; without this
// variable it does nothing. Call it once, early.
func FromEnv() error {
	socket, err := safefile.Inherited(Env)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if socket == nil {
		return nil
	}
	go func() {
		fmt.Fprintln(os.Stderr, Serve(socket)) // the process continues without profiles
	}()
	return nil
}

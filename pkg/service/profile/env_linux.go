package profile

import (
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// FromEnv starts a goroutine that serves profiles on the socket that this process has inherited. If
// it has inherited none, FromEnv does nothing. Call FromEnv once, before the process starts
// children.
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

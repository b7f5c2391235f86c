package profile

import (
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/fdpass"
)

// FromEnv answers on the socket that the environment names, as long as the process lives; without
// one it does nothing. Call it once, early.
func FromEnv() error {
	socket, err := fdpass.File(Env)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if socket == nil {
		return nil
	}
	go func() {
		fmt.Fprintln(os.Stderr, Serve(socket)) // it goes on, and answers no more
	}()
	return nil
}

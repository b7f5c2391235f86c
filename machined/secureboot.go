package main

import (
	"context"
	"errors"
	"os"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// newFirmware makes the check of boot images against the keys of the firmware.
func newFirmware(m *machine) secureboot.Checker {
	return secureboot.Checker{Dir: bootenv.VariablesDir, Start: func(ctx context.Context, question []byte, files []*os.File, most int) ([]byte, error) {
		text, err := m.processes.commands.reaper.RunCommand(ctx, supervise.Command{
			Args: []string{paths.Bootcheck}, Env: secureboot.Environment, Stdin: question, Files: files,
			UID: paths.UserProbe, SeparateStderr: true, MaxOutput: most, KillFirst: true,
		})
		if exit := (*supervise.ExitError)(nil); errors.As(err, &exit) {
			// its output may contain text of a certificate
			return nil, errors.New("its process " + exit.Exit.String())
		}
		return text, err
	}}
}

// readSecureBoot reads the state of Secure Boot.
func readSecureBoot() (secureboot.State, error) { return secureboot.Read(bootenv.VariablesDir) }

package main

import (
	"context"
	"os"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// newFirmware makes the check of boot images against the keys of the firmware.
func newFirmware(m *machine) secureboot.Checker {
	return secureboot.Checker{Dir: bootenv.VariablesDir, Start: func(ctx context.Context, question []byte, files []*os.File, most int) ([]byte, error) {
		return m.processes.commands.reaper.RunParser(ctx, supervise.Command{
			Args: []string{paths.Bootcheck}, Env: secureboot.Environment, Stdin: question, Files: files, UID: paths.UserProbe, MaxOutput: most,
		})
	}}
}

// readSecureBoot reads the state of Secure Boot.
func readSecureBoot() (secureboot.State, error) { return secureboot.Read(bootenv.VariablesDir) }

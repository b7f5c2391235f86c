package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/verity"
)

// newAttester returns the client of the attester process, which talks to the TPM. Before the first
// request, it opens no device and starts no process.
func newAttester(m *machine) *attest.Asker {
	start := m.processes.commands.reaper.Parser(supervise.Command{Args: []string{paths.Attester}, Env: attest.Environment, UID: paths.UserProbe})
	return &attest.Asker{Device: attest.Device, Log: attest.LogFile, Start: start}
}

// claims returns what the machine says about itself in a quote.
func claims(m *machine) (c attest.Claims, err error) {
	line, err := os.ReadFile(bootenv.CommandLine)
	if err != nil {
		return c, fmt.Errorf("attestation: the root is unknown: %w", err)
	}
	root, err := verity.FromCommandLine(string(line))
	if err != nil {
		return c, fmt.Errorf("attestation: the root is unknown: %w", err)
	}
	own := m.identity.Load()
	if own == nil {
		return c, errors.New("attestation: the machine has no key yet; try again when it has booted")
	}
	c = attest.Claims{Version: m.system.release.Version, Root: root.String(), MachineKey: pki.Fingerprint(own.Cert)}
	if now := m.config.active.Current(); now.Config != nil {
		sum := sha256.Sum256(config.MarshalRedacted(now.Config))
		c.Configuration = sum[:]
	}
	return c, nil
}

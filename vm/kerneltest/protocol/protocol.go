// Package protocol is what a kernel test's two sides agree on: where things are in the guest, what
// to run, how it ended. It is small because it is part of the guest's init.
package protocol

import (
	"encoding/json"
	"fmt"
)

// Names of the virtio-serial ports, and of the files that both sides know.
const (
	StdoutPort  = "orlop.stdout"
	StderrPort  = "orlop.stderr"
	ControlPort = "orlop.control"

	// Begun is what the guest says on ControlPort before it starts the program. Its outcome is the
	// next line.
	Begun = "begun\n"

	// JobFile is where the guest's init finds its Job.
	JobFile = "/job.json"
	// ModuleDir holds the modules, named so that their order is the order of loading.
	ModuleDir = "/modules"
	// WorkDir is where the program runs; its testdata is below.
	WorkDir = "/work"
	// ProgramFile is the test binary.
	ProgramFile = "/work.test"
)

// Job is what the guest's init has to run.
type Job struct {
	Args []string `json:"args"`
	Env  []string `json:"env"`
	// Parameters are the modules' ("numdummies=0"), by their file name in ModuleDir.
	Parameters map[string]string `json:"parameters,omitempty"`
}

// Outcome is what the guest's init reports at the end, as one line of JSON on ControlPort.
type Outcome struct {
	// ExitCode is the program's; 128 plus the signal's number when one ended it.
	ExitCode int `json:"exitCode"`
	// Failure is why the program could not be run at all.
	Failure string `json:"failure,omitempty"`
}

// Line is the outcome as it goes over the port.
func (o Outcome) Line() ([]byte, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("kernel test: cannot encode the outcome: %w", err)
	}
	return append(data, '\n'), nil
}

// Package protocol defines the protocol between a kernel test on the host and the init of its
// guest: the paths in the guest, the program to run, and its result. The package is small, because
// it is part of the init.
package protocol

import (
	"encoding/json"
	"fmt"
)

// Names of the virtio-serial ports, and of the files of the guest.
const (
	StdoutPort  = "orlop.stdout"
	StderrPort  = "orlop.stderr"
	ControlPort = "orlop.control"

	// Begun is the message of the guest on ControlPort before it starts the program. The next line
	// on this port is the Outcome.
	Begun = "begun\n"

	// JobFile is the file with the Job of the guest's init.
	JobFile = "/job.json"
	// ModuleDir holds the modules; the order of their names is the order of loading.
	ModuleDir = "/modules"
	// WorkDir is the program's working directory, with its testdata.
	WorkDir = "/work"
	// ProgramFile is the test binary.
	ProgramFile = "/work.test"
)

// Job describes the program for the guest's init.
type Job struct {
	Args []string `json:"args"`
	Env  []string `json:"env"`
	// Parameters are the parameters of the modules ("numdummies=0"), by their file name in
	// ModuleDir.
	Parameters map[string]string `json:"parameters,omitempty"`
}

// Outcome is the final report of the guest's init, as one line of JSON on ControlPort.
type Outcome struct {
	// ExitCode is the program's exit code; 128 plus the signal's number if a signal ended the
	// program.
	ExitCode int `json:"exitCode"`
	// Failure is the reason why the program could not be run; empty if it ran.
	Failure string `json:"failure,omitempty"`
}

// Line returns the outcome as a line for ControlPort.
func (o Outcome) Line() ([]byte, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("kernel test: cannot encode the outcome: %w", err)
	}
	return append(data, '\n'), nil
}

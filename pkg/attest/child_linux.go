package attest

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/orlop-os/orlop/pkg/kernel/confine"
	chip "github.com/orlop-os/orlop/pkg/tpm"
)

// File descriptors that the process inherits.
const (
	tpmFile = 3
	logFile = 4
)

// Limits of the process.
const (
	maxMemory = 256 << 20 // bytes (confine.ParserLimits)
	maxCPU    = 20        // seconds
	maxFiles  = 64        // file descriptors
)

// Environment holds all environment variables of the process.
var Environment = []string{"GOMEMLIMIT=32MiB", "GOMAXPROCS=1", "GOTRACEBACK=none"}

// reply is the output of the process.
type reply struct {
	answer
	Failed string `json:"failed,omitempty"` // why there is no answer; empty if there is an answer
}

// Main is the main function of the process. It drops its privileges, answers one question by means
// of the TPM, writes the reply, and returns the exit status.
func Main() int {
	device := chip.Conn{ReadWriter: os.NewFile(tpmFile, "TPM")}
	if err := respond(os.Stdin, os.Stdout, device, os.NewFile(logFile, "event log"), confineSelf); err != nil {
		fmt.Fprintln(os.Stderr, "attester:", err)
		return 1
	}
	return 0
}

// confineSelf drops all privileges that the process does not need.
func confineSelf() error {
	return confine.Process(confine.Rules{Calls: confine.ParserCalls, Limits: confine.ParserLimits(maxMemory, maxCPU, maxFiles)})
}

// respond reads the question of PID 1 from in, drops all privileges by a call of the function
// confined, and then talks to the TPM. It writes the reply to out.
func respond(in io.Reader, out io.Writer, tpm transport.TPM, log io.Reader, confined func() error) error {
	var q question
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("cannot parse the question: %w", err)
	}
	if err := confined(); err != nil {
		return err
	}
	var r reply
	var err error
	if r.answer, err = ask(tpm, q); err == nil && q.Data != nil {
		r.Evidence.Log, err = readLog(log)
	}
	if err != nil {
		r = reply{Failed: err.Error()}
	}
	return json.NewEncoder(out).Encode(r)
}

// readLog reads the event log.
func readLog(log io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(log, MaxLog+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the event log: %w", err)
	}
	if len(text) > MaxLog {
		return nil, fmt.Errorf("the event log has more than %d KiB", MaxLog>>10)
	}
	return text, nil
}

package diskkey

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/kernel/confine"
	"github.com/orlop-os/orlop/pkg/tpm"
)

// The operations of the process. File descriptor 3 is the TPM, 4 the event log of the firmware.
const (
	opSeal    = "seal"
	opUnseal  = "unseal"
	opEnd     = "end"
	opPredict = "predict" // 5 is the boot image of the next boot, 6 that of the running version
)

// order is a request of PID 1 to the process, as JSON.
type order struct {
	Operation  string `json:"operation"`
	Key        []byte `json:"key,omitempty"` // to seal
	Signer     []byte `json:"signer,omitempty"`
	Sealed     Sealed `json:"sealed"`
	Signatures []byte `json:"signatures,omitempty"` // section .pcrsig of the running boot image
	// Started is result.Started of an earlier end of the phase in this boot.
	Started []byte `json:"started,omitempty"`
	// Enabled, DB and DBX are fields of Firmware.
	Enabled bool   `json:"enabled,omitempty"`
	DB      []byte `json:"db,omitempty"`
	DBX     []byte `json:"dbx,omitempty"`
}

// result is the answer of the process.
type result struct {
	Key    []byte `json:"key,omitempty"` // unsealed
	Sealed Sealed `json:"sealed"`
	// Started is PCR 11 before the end of the phase, also after a failure to end it. Later orders
	// have it, because the event log of the firmware can be missing or incomplete.
	Started []byte `json:"started,omitempty"`
	Failed  string `json:"failed,omitempty"` // the reason of a failure; else empty
	// Reason is the number of the error in reasons that the failure wraps, from 1 on; 0 for none.
	Reason int `json:"reason,omitempty"`
}

// reasons are the errors that a caller distinguishes.
var reasons = []error{ErrTPM, ErrSecureBoot, ErrImage}

// Limits of the process.
const (
	maxMemory = 256 << 20 // bytes (confine.ParserLimits)
	maxCPU    = 20        // seconds
	maxFiles  = 64        // file descriptors
)

// Environment holds all environment variables of the process.
var Environment = []string{"GOMEMLIMIT=64MiB", "GOMAXPROCS=1", "GOTRACEBACK=none"}

// Main is the main function of the process: it drops its privileges, executes one order, writes the
// result, and returns the exit status.
func Main() int {
	files := []*os.File{os.NewFile(3, "TPM"), os.NewFile(4, "event log"), os.NewFile(5, "boot image"), os.NewFile(6, "running boot image")}
	confined := func() error {
		return confine.Process(confine.Rules{Calls: confine.ParserCalls, Limits: confine.ParserLimits(maxMemory, maxCPU, maxFiles)})
	}
	if err := respond(os.Stdin, os.Stdout, files, confined); err != nil {
		fmt.Fprintln(os.Stderr, "sealer:", err)
		return 1
	}
	return 0
}

// respond reads an order, which PID 1 has written, and drops all privileges before it talks to the
// TPM or parses a boot image.
func respond(in io.Reader, out io.Writer, files []*os.File, confined func() error) error {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("cannot parse the order: %w", err)
	}
	if err := confined(); err != nil {
		return err
	}
	r, err := execute(o, files)
	return json.NewEncoder(out).Encode(r.failed(err))
}

// failed returns the result of an operation with its error. An error has no key.
func (r result) failed(err error) result {
	if err == nil {
		return r
	}
	out := result{Failed: err.Error(), Started: r.Started}
	for i, reason := range reasons {
		if errors.Is(err, reason) {
			out.Reason = i + 1
		}
	}
	return out
}

// execute executes an order.
func execute(o order, files []*os.File) (result, error) {
	// Only a prediction needs the log. For the other operations, a log that cannot be read is an
	// empty log.
	events, err := readLog(files[1])
	if o.Operation == opPredict {
		if err != nil {
			return result{}, err
		}
		return result{}, predict(o, tpm.Conn{ReadWriter: files[0]}, events, files[2], files[3])
	}
	return command(o, tpm.Conn{ReadWriter: files[0]}, events)
}

// readLog reads the event log of the firmware. An empty log has no events.
func readLog(log io.Reader) ([]attest.Event, error) {
	text, err := io.ReadAll(io.LimitReader(log, attest.MaxLog+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the event log: %w", err)
	}
	if len(text) == 0 {
		return nil, nil
	}
	return attest.ParseLog(text)
}

// command executes an order with the TPM.
func command(o order, t transport.TPM, events []attest.Event) (r result, err error) {
	switch o.Operation {
	case opSeal:
		signer, err := ParseSigner(o.Signer)
		if err != nil {
			return r, err
		}
		signatures, err := parseOptional(o.Signatures)
		if err != nil {
			return r, err
		}
		r.Sealed, err = SealChecked(t, o.Key, signer, signatures, startOf(o.Started, events))
		return r, err
	case opUnseal:
		signatures, err := parseOptional(o.Signatures)
		if err != nil {
			return r, err
		}
		r.Key, err = Unseal(t, o.Sealed, signatures)
		return r, err
	case opEnd:
		r.Started, err = EndPhase(t, startOf(o.Started, events))
		return r, err
	}
	return r, fmt.Errorf("unknown operation %q", o.Operation)
}

// parseOptional parses signatures. A boot image without signatures is no error here: the check of
// the policy reports it.
func parseOptional(text []byte) (Signatures, error) {
	if len(text) == 0 {
		return Signatures{}, nil
	}
	return ParseSignatures(text)
}

// predict checks whether the TPM will release a sealed key after the boot of another boot image.
func predict(o order, t transport.TPM, events []attest.Event, next, running *os.File) error {
	present, err := readPCR(t, pcrSecureBoot)
	if err != nil {
		return err
	}
	images := make([]Image, 2)
	for i, f := range []*os.File{next, running} {
		size, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return fmt.Errorf("boot image: %w", err)
		}
		images[i] = Image{f, size}
	}
	b, err := PredictImage(Firmware{Events: events, SecureBoot: present, Enabled: o.Enabled, DB: o.DB, DBX: o.DBX}, images[0], images[1])
	if err != nil {
		return err
	}
	return o.Sealed.Check(b)
}

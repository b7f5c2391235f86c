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

// The operations of the process.
const (
	opSeal    = "seal"    // file descriptor 3 is the TPM
	opUnseal  = "unseal"  // 3 is the TPM
	opEnd     = "end"     // 3 is the TPM
	opPredict = "predict" // 3 is the boot image, 4 the event log
)

// order is a request of PID 1 to the process, as JSON.
type order struct {
	Operation  string `json:"operation"`
	Key        []byte `json:"key,omitempty"` // to seal
	Signer     []byte `json:"signer,omitempty"`
	Sealed     Sealed `json:"sealed"`
	Signatures []byte `json:"signatures,omitempty"` // section .pcrsig of the running boot image
	// Enabled, DB and DBX are fields of Firmware.
	Enabled bool   `json:"enabled,omitempty"`
	DB      []byte `json:"db,omitempty"`
	DBX     []byte `json:"dbx,omitempty"`
}

// result is the answer of the process.
type result struct {
	Key    []byte `json:"key,omitempty"` // unsealed
	Sealed Sealed `json:"sealed"`
	Failed string `json:"failed,omitempty"` // the reason of a failure; else empty
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
	files := []*os.File{os.NewFile(3, "TPM or boot image"), os.NewFile(4, "event log")}
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
	if err != nil {
		r = result{Failed: err.Error()}
		for i, reason := range reasons {
			if errors.Is(err, reason) {
				r.Reason = i + 1
			}
		}
	}
	return json.NewEncoder(out).Encode(r)
}

// execute executes an order.
func execute(o order, files []*os.File) (result, error) {
	if o.Operation == opPredict {
		return result{}, predict(o, files[0], files[1])
	}
	return command(o, tpm.Conn{ReadWriter: files[0]})
}

// command executes an order with the TPM.
func command(o order, t transport.TPM) (r result, err error) {
	switch o.Operation {
	case opSeal:
		signer, err := ParseSigner(o.Signer)
		if err != nil {
			return r, err
		}
		b, err := ReadBoot(t, Signatures{})
		if err != nil {
			return r, err
		}
		r.Sealed, err = Seal(t, o.Key, signer, b.SecureBoot)
		return r, err
	case opUnseal:
		signatures, err := parseOptional(o.Signatures)
		if err != nil {
			return r, err
		}
		r.Key, err = Unseal(t, o.Sealed, signatures)
		return r, err
	case opEnd:
		return r, EndPhase(t)
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
func predict(o order, image, log *os.File) error {
	text, err := io.ReadAll(io.LimitReader(log, attest.MaxLog+1))
	if err != nil {
		return fmt.Errorf("cannot read the event log: %w", err)
	}
	events, err := attest.ParseLog(text)
	if err != nil {
		return err
	}
	size, err := image.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("boot image: %w", err)
	}
	b, err := PredictImage(Firmware{Events: events, Enabled: o.Enabled, DB: o.DB, DBX: o.DBX}, image, size)
	if err != nil {
		return err
	}
	return o.Sealed.Check(b)
}

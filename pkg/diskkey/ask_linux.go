package diskkey

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Deadline is the maximum time of an operation of the TPM. A slow chip needs some seconds.
const Deadline = time.Minute

// Asker executes operations of the TPM in a process.
type Asker struct {
	Device string // device file of the TPM
	Log    string // event log of the firmware
	// Signatures is the file with the section .pcrsig of the running boot image, and Signer the
	// file with the public key in the root.
	Signatures string
	Signer     string
	Start      attest.Start
	busy       sync.Mutex // locked while a process uses the TPM
	started    []byte     // result.Started of the last end of the phase
}

// maxAnswer is the maximum size of an answer in bytes. maxReason is the maximum length of an error
// text in characters.
const (
	maxAnswer = 64 << 10
	maxReason = 1 << 10
)

// Seal seals an unlock key to PCR 7 of the running boot, and to boot images of the builder. It
// fails if the running boot could not unseal the key.
func (a *Asker) Seal(ctx context.Context, key []byte) (Sealed, error) {
	signer, err := os.ReadFile(a.Signer)
	if errors.Is(err, fs.ErrNotExist) {
		return Sealed{}, errors.New("the image has no key for PCR 11: it was built without secureBoot in its profile, or with a key other than RSA 2048; no TPM can release a key to its later versions")
	}
	if err != nil {
		return Sealed{}, err
	}
	signatures, err := a.signatures()
	if err != nil {
		return Sealed{}, err
	}
	r, err := a.repeat(ctx, order{Operation: opSeal, Key: key, Signer: signer, Signatures: signatures})
	return r.Sealed, err
}

// Unseal returns an unlock key.
func (a *Asker) Unseal(ctx context.Context, s Sealed) ([]byte, error) {
	signatures, err := a.signatures()
	if err != nil {
		return nil, err
	}
	r, err := a.repeat(ctx, order{Operation: opUnseal, Sealed: s, Signatures: signatures})
	return r.Key, err
}

// repeat executes an order. It repeats an order that fails without a reason, and waits for a TPM
// that the kernel has not found yet.
func (a *Asker) repeat(ctx context.Context, o order) (result, error) {
	for failed, missing := 0, 0; ; {
		r, err := a.withTPM(ctx, o)
		if err == nil && o.Operation == opUnseal && len(r.Key) != KeySize {
			err = errors.New("TPM: the process that talks to it gives no valid answer")
		}
		switch {
		case err == nil:
			return r, nil
		case errors.Is(err, attest.ErrNone):
			missing++
		default:
			failed++
		}
		if failed == attempts || missing > deviceWait || hasReason(err) || !wait(ctx) {
			return result{}, err
		}
	}
}

// attempts is the number of attempts of an operation. A TPM can fail to answer once. After each
// attempt, wait waits for pause. deviceWait is the number of such pauses until a TPM counts as
// missing.
const (
	attempts   = 3
	pause      = time.Second
	deviceWait = 10
)

// wait waits for pause. It returns false if ctx has ended.
func wait(ctx context.Context) bool {
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// hasReason reports whether a failure has one of the reasons.
func hasReason(err error) bool {
	return slices.ContainsFunc(reasons, func(reason error) bool { return errors.Is(err, reason) })
}

// signatures returns the signatures of the running boot image; none if it has none.
func (a *Asker) signatures() ([]byte, error) {
	text, err := os.ReadFile(a.Signatures)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// EndPhase ends the time in which the TPM releases the unlock keys. Without a TPM it returns
// attest.ErrNone. After another error, the TPM may continue to release them.
func (a *Asker) EndPhase(ctx context.Context) (err error) {
	for n := range attempts {
		if n > 0 && !wait(ctx) {
			return err
		}
		if _, err = a.withTPM(ctx, order{Operation: opEnd}); err == nil || errors.Is(err, attest.ErrNone) {
			return err
		}
	}
	return err
}

// BootImages are the files for a prediction: the boot image of the next boot, and that of the
// running version.
type BootImages struct{ Next, Running *os.File }

// Predict returns an error that wraps the reason if the TPM will not release a sealed key after the
// boot of another boot image. An error without a reason means that it is not known.
func (a *Asker) Predict(ctx context.Context, s Sealed, images BootImages, enabled bool, db, dbx []byte) error {
	_, err := a.withTPM(ctx, order{Operation: opPredict, Sealed: s, Enabled: enabled, DB: db, DBX: dbx}, images.Next, images.Running)
	return err
}

// withTPM executes an order that needs the TPM. The process gets the TPM, the event log of the
// firmware, and more files.
func (a *Asker) withTPM(ctx context.Context, o order, more ...*os.File) (result, error) {
	a.busy.Lock()
	defer a.busy.Unlock()
	// os.OpenFile makes a descriptor non-blocking. A read from such a descriptor would return
	// before the TPM has answered.
	fd, err := unix.Open(a.Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return result{}, attest.ErrNone
	}
	if err != nil {
		return result{}, fmt.Errorf("TPM: cannot open %s: %w", a.Device, err)
	}
	device := os.NewFile(uintptr(fd), a.Device)
	defer device.Close()
	log, err := os.Open(a.Log)
	if errors.Is(err, fs.ErrNotExist) || err != nil && o.Operation != opPredict {
		// An empty log. Only a prediction needs a log.
		log, err = os.Open(os.DevNull)
	}
	if err != nil {
		return result{}, fmt.Errorf("TPM: cannot open the event log: %w", err)
	}
	defer log.Close()
	o.Started = a.started
	r, err := a.ask(ctx, o, append([]*os.File{device, log}, more...))
	if len(r.Started) > 0 {
		a.started = r.Started
	}
	return r, err
}

// ask runs the process. It wipes the buffers with keys.
func (a *Asker) ask(ctx context.Context, o order, files []*os.File) (r result, err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return r, err
	}
	defer clear(text)
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	answer, err := a.Start(ctx, text, files, maxAnswer)
	if err != nil {
		return r, fmt.Errorf("TPM: it gives no answer: %w", err)
	}
	defer clear(answer)
	if err := json.Unmarshal(answer, &r); err != nil {
		return r, errors.New("TPM: the process that talks to it gives no valid answer")
	}
	return r, r.err()
}

// err returns the failure of the process, which wraps its reason.
func (r result) err() error {
	if r.Failed == "" {
		return nil
	}
	text := "TPM: " + sanitize.ASCII(r.Failed, maxReason)
	if r.Reason < 1 || r.Reason > len(reasons) {
		return errors.New(text)
	}
	return failure{text, reasons[r.Reason-1]}
}

// failure is an error with the text of the process and the reason.
type failure struct {
	text   string
	reason error
}

func (f failure) Error() string { return f.text }
func (f failure) Unwrap() error { return f.reason }

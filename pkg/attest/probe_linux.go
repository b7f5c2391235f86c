package attest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Start runs the process until it exits, and returns its standard output, which may have at most
// `most` bytes. question is the standard input. The process inherits files from descriptor 3 on.
type Start func(ctx context.Context, question []byte, files []*os.File, most int) ([]byte, error)

// Asker gets the keys and evidence of the TPM from a process.
type Asker struct {
	Device string // device file of the TPM with the kernel's resource manager
	Log    string // event log of the firmware, in securityfs
	Start  Start
	// busy is locked while a process uses the TPM, because a TPM runs a single command at a time.
	busy sync.Mutex
}

// The files of the first TPM.
const (
	Device  = "/dev/tpmrm0"
	LogFile = "/sys/kernel/security/tpm0/binary_bios_measurements"
)

// The errors of a machine that cannot attest, besides errors that its TPM returns.
var (
	ErrNone = errors.New("TPM: the machine has no TPM 2.0; enable it in the setup of the firmware, or give the virtual machine one")
	ErrBusy = errors.New("TPM: it works on another call; try again in some seconds")
)

// maxAnswer is the maximum size of an answer in bytes: the log and the structures of the TPM in
// base64. maxReason is the maximum length of an error text in characters.
const (
	maxAnswer = MaxLog/3*4 + 64<<10
	maxReason = 1 << 10
)

// Keys returns the keys of the TPM.
func (a *Asker) Keys(ctx context.Context) (Keys, error) {
	out, err := a.ask(ctx, question{})
	return out.Keys, err
}

// Attest returns evidence that contains the nonce, the claims and the decrypted challenge.
func (a *Asker) Attest(ctx context.Context, nonce []byte, c Challenge, claims Claims) (Evidence, error) {
	out, err := a.ask(ctx, question{Data: Binding(nonce, claims), Challenge: c})
	out.Evidence.Claims = claims
	return out.Evidence, err
}

func (a *Asker) ask(ctx context.Context, q question) (out reply, err error) {
	if !a.busy.TryLock() {
		return out, ErrBusy
	}
	defer a.busy.Unlock()
	files, err := a.open()
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return out, err
	}
	text, err := json.Marshal(q)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	answer, err := a.Start(ctx, text, files, maxAnswer)
	if err != nil {
		return out, fmt.Errorf("TPM: it gives no answer: %w", err)
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return out, errors.New("TPM: the process that talks to it gives no valid answer")
	}
	if out.Failed != "" {
		return out, errors.New("TPM: " + sanitize.ASCII(out.Failed, maxReason))
	}
	return out, nil
}

// open opens the TPM and the log.
func (a *Asker) open() (files []*os.File, err error) {
	// os.OpenFile makes a descriptor non-blocking. A read from such a descriptor would return
	// before the TPM has answered.
	fd, err := unix.Open(a.Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("TPM: cannot open %s: %w", a.Device, err)
	}
	files = append(files, os.NewFile(uintptr(fd), a.Device))
	log, err := os.Open(a.Log)
	if errors.Is(err, fs.ErrNotExist) {
		return files, errors.New("TPM: the firmware left no event log; enable the log of TPM 2.0 in its setup")
	}
	if err != nil {
		return files, fmt.Errorf("TPM: cannot open the event log: %w", err)
	}
	return append(files, log), nil
}

package diskkey

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/pkg/attest"
)

// TestAsker seals and unseals through the protocol between PID 1 and the process, with an emulated
// TPM in the place of the process. The reasons of failures survive the protocol.
func TestAsker(t *testing.T) {
	dir, own := t.TempDir(), newBuilder(t)
	tpm := boot(t, t.TempDir(), "on", "version 1")
	var orders [][]byte
	a := &Asker{Device: filepath.Join(dir, "tpm"), Signatures: filepath.Join(dir, "pcrsig"), Signer: filepath.Join(dir, "pcrpkey"), Log: filepath.Join(dir, "log"),
		Start: func(_ context.Context, in []byte, files []*os.File, most int) ([]byte, error) {
			orders = append(orders, in)
			if len(files) != 2 || most != maxAnswer {
				t.Errorf("%d files, at most %d bytes", len(files), most)
			}
			var out bytes.Buffer
			var o order
			if err := json.Unmarshal(in, &o); err != nil {
				return nil, err
			}
			// Without an event log, PID 1 has the value of PCR 11.
			r, err := command(o, tpm, nil)
			err = json.NewEncoder(&out).Encode(r.failed(err))
			return out.Bytes(), err
		}}
	key := bytes.Repeat([]byte{5}, KeySize)
	if _, err := a.Seal(t.Context(), key); err == nil || !strings.Contains(err.Error(), "the image has no key for PCR 11") {
		t.Errorf("an image without a key: %v", err)
	}
	public, err := MarshalSigner(&own.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.Signer, public, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel() // so that Seal does not wait for a TPM
	if _, err := a.Seal(ended, key); !errors.Is(err, attest.ErrNone) {
		t.Errorf("a machine without a TPM: %v", err)
	}
	if err := a.EndPhase(t.Context()); !errors.Is(err, attest.ErrNone) {
		t.Errorf("the end of the phase without a TPM: %v", err)
	}
	if err := os.WriteFile(a.Device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Seal(t.Context(), key); !errors.Is(err, ErrImage) {
		t.Errorf("a key that this boot cannot unseal: %v", err)
	}
	text, err := json.Marshal(own.sign(t, valueOf("version 1")))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.Signatures, text, 0o600); err != nil {
		t.Fatal(err)
	}
	sealed, err := a.Seal(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(a.Signatures, a.Signatures+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Unseal(t.Context(), sealed); !errors.Is(err, ErrImage) || !strings.HasPrefix(err.Error(), "TPM: PCR 11") {
		t.Errorf("a boot image without signatures: %v", err)
	}
	if err := os.Rename(a.Signatures+".away", a.Signatures); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Unseal(t.Context(), sealed); err != nil || !bytes.Equal(got, key) {
		t.Errorf("%x, %v", got, err)
	}
	for range 2 {
		if err := a.EndPhase(t.Context()); err != nil {
			t.Fatal(err)
		}
		// A recovery seals after the end of the phase.
		if _, err := a.Seal(t.Context(), key); err != nil {
			t.Errorf("a seal after the phase: %v", err)
		}
	}
	if _, err := a.Unseal(t.Context(), sealed); !errors.Is(err, ErrImage) {
		t.Errorf("after the phase: %v", err)
	}
	for _, o := range orders {
		if len(bytes.Trim(o, "\x00")) > 0 {
			t.Error("an order with a key stays in memory")
		}
	}
}

// fakeAsker returns an Asker with a device file and a process that gives the answers in order, and
// the last one again. It counts the calls.
func fakeAsker(t *testing.T, device bool, answers ...string) (*Asker, *int) {
	t.Helper()
	dir, calls := t.TempDir(), new(int)
	a := &Asker{Device: filepath.Join(dir, "tpm"), Signatures: filepath.Join(dir, "pcrsig"), Log: filepath.Join(dir, "log")}
	if device {
		if err := os.WriteFile(a.Device, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.Start = func(context.Context, []byte, []*os.File, int) ([]byte, error) {
		answer := answers[min(*calls, len(answers)-1)]
		if *calls++; answer == "" {
			return nil, errors.New("the TPM does not answer")
		}
		return []byte(answer), nil
	}
	return a, calls
}

// TestUnsealAgain checks how often a key is requested, and for how long.
func TestUnsealAgain(t *testing.T) {
	key, err := json.Marshal(result{Key: bytes.Repeat([]byte{5}, KeySize)})
	if err != nil {
		t.Fatal(err)
	}
	const other, reason, busy = "{}", `{"failed":"PCR 7","reason":2}`, `{"failed":"busy"}`
	for _, c := range []struct {
		name    string
		answers []string
		calls   int
		time    time.Duration
		opens   bool
	}{
		{"at once", []string{string(key)}, 1, 0, true},
		{"no answer, then a failure", []string{"", busy, string(key)}, 3, 2 * pause, true},
		{"failures", []string{busy}, attempts, (attempts - 1) * pause, false},
		{"empty answers", []string{other}, attempts, (attempts - 1) * pause, false},
		{"a reason", []string{reason}, 1, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, calls := fakeAsker(t, true, c.answers...)
			begin := time.Now()
			got, err := a.Unseal(t.Context(), Sealed{})
			if (err == nil) != c.opens || c.opens != (len(got) == KeySize) || *calls != c.calls || time.Since(begin) != c.time {
				t.Errorf("%s: key %x, %v, after %d calls and %v", c.name, got, err, *calls, time.Since(begin))
			}
		})
	}
}

// TestUnsealWaits checks that a TPM which the kernel finds late opens the disks, and that a machine
// without a TPM does not wait long.
func TestUnsealWaits(t *testing.T) {
	key, err := json.Marshal(result{Key: bytes.Repeat([]byte{5}, KeySize)})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		a, _ := fakeAsker(t, false, string(key))
		begin := time.Now()
		if _, err := a.Unseal(t.Context(), Sealed{}); !errors.Is(err, attest.ErrNone) || time.Since(begin) != deviceWait*pause {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		time.AfterFunc(deviceWait*pause-pause/2, func() {
			if err := os.WriteFile(a.Device, nil, 0o600); err != nil {
				t.Error(err)
			}
		})
		if got, err := a.Unseal(t.Context(), Sealed{}); err != nil || len(got) != KeySize {
			t.Errorf("a TPM after some seconds: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a.Device += ".missing"
		begin = time.Now()
		if _, err := a.Unseal(ctx, Sealed{}); err == nil || time.Since(begin) != 0 {
			t.Errorf("at the shutdown: %v after %v", err, time.Since(begin))
		}
	})
}

// TestEndPhaseAgain checks the attempts to end the phase.
func TestEndPhaseAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, calls := fakeAsker(t, true, "", `{"failed":"busy"}`, "{}")
		begin := time.Now()
		if err := a.EndPhase(t.Context()); err != nil || *calls != 3 || time.Since(begin) != 2*pause {
			t.Errorf("a TPM that answers at last: %v", err)
		}
		a, calls = fakeAsker(t, true, "")
		if err := a.EndPhase(t.Context()); err == nil || *calls != attempts {
			t.Errorf("a TPM that never answers has ended the phase after %d calls", *calls)
		}
	})
}

// TestEndPhaseValue checks that PCR 11 before the end of the phase is kept, also if the end fails.
func TestEndPhaseValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := fakeAsker(t, true, `{"failed":"busy","started":"AAEC"}`, "{}")
		next := a.Start
		var last order
		a.Start = func(ctx context.Context, in []byte, files []*os.File, most int) ([]byte, error) {
			if err := json.Unmarshal(in, &last); err != nil {
				return nil, err
			}
			return next(ctx, in, files, most)
		}
		if err := a.EndPhase(t.Context()); err != nil || !bytes.Equal(last.Started, []byte{0, 1, 2}) {
			t.Errorf("the second attempt has the value %x (%v)", last.Started, err)
		}
	})
}

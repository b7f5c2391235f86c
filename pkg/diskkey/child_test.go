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
			r, err := command(o, tpm, logOf("version 1"))
			if err != nil {
				r = result{Failed: err.Error()}
				for i, reason := range reasons {
					if errors.Is(err, reason) {
						r.Reason = i + 1
					}
				}
			}
			err = json.NewEncoder(&out).Encode(r)
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
	if _, err := a.Seal(t.Context(), key); !errors.Is(err, attest.ErrNone) {
		t.Errorf("a machine without a TPM: %v", err)
	}
	if err := a.EndPhase(t.Context()); err != nil {
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
	if err := a.EndPhase(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Unseal(t.Context(), sealed); !errors.Is(err, ErrImage) {
		t.Errorf("after the phase: %v", err)
	}
	for _, o := range orders {
		if len(bytes.Trim(o, "\x00")) > 0 {
			t.Error("an order with a key stays in memory")
		}
	}
	attempts := 0
	a.Start = func(context.Context, []byte, []*os.File, int) ([]byte, error) {
		if attempts++; attempts < endAttempts {
			return nil, errors.New("the TPM does not answer")
		}
		return []byte("{}"), nil
	}
	if err := a.EndPhase(t.Context()); err != nil {
		t.Errorf("a TPM that answers at last: %v", err)
	}
	attempts = -endAttempts
	if err := a.EndPhase(t.Context()); err == nil {
		t.Error("a TPM that never answers has ended the phase")
	}
	a.Start = func(context.Context, []byte, []*os.File, int) ([]byte, error) { return []byte("{}"), nil }
	if _, err := a.Unseal(t.Context(), sealed); err == nil {
		t.Error("an empty answer is a key")
	}
}

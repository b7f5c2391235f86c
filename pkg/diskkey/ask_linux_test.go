package diskkey

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestEndPhasePauses checks that a pause separates the attempts to end the phase: a busy TPM needs
// the time.
func TestEndPhasePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begins []time.Time
		dir := t.TempDir()
		a := &Asker{Device: filepath.Join(dir, "tpm"), Log: filepath.Join(dir, "log"), Start: func(context.Context, []byte, []*os.File, int) ([]byte, error) {
			begins = append(begins, time.Now())
			return nil, errors.New("the TPM does not answer")
		}}
		if err := os.WriteFile(a.Device, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := a.EndPhase(t.Context()); err == nil || len(begins) != 3 {
			t.Errorf("%d attempts, %v", len(begins), err)
		}
		for i := 1; i < len(begins); i++ {
			if pause := begins[i].Sub(begins[i-1]); pause < time.Second {
				t.Errorf("attempt %d begins %s after the former", i+1, pause)
			}
		}
	})
}

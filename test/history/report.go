package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/orlop-os/orlop/test/register"
)

// report is the format of build/history.json; docs/history.md describes its fields.
type report struct {
	Seed          uint64           `json:"seed"`
	ControlPlanes int              `json:"control_planes"`
	Dilation      int              `json:"time_dilation"` // factor of vm.Clock for all times
	Rounds        int              `json:"rounds"`
	Verdict       register.Verdict `json:"verdict"`
	Operations    int              `json:"operations"`
	Done          int              `json:"done"`
	Refused       int              `json:"refused"`
	Unknown       int              `json:"unknown"`
	SilenceS      float64          `json:"longest_silence_s"`
	Faults        []round          `json:"faults"`
}

// round is a fault and its effects.
type round struct {
	fault
	// SilenceS is the longest time without an answer, from the start of the fault until all
	// machines were healthy again. HealthyS is the time from the end of the fault until all
	// machines were healthy again.
	SilenceS float64 `json:"silence_s"`
	HealthyS float64 `json:"healthy_s"`
}

// count counts the operations of a history by their answers, and computes the longest silence.
func (r *report) count(history []register.Operation) {
	r.Operations, r.Done, r.Refused, r.Unknown = len(history), 0, 0, 0
	for _, o := range history {
		switch o.Answer {
		case register.Done:
			r.Done++
		case register.Refused:
			r.Refused++
		case register.Unknown:
			r.Unknown++
		}
	}
	r.SilenceS = register.Silence(history).Seconds()
}

// write replaces the report. It stores the history in a separate file, which other checkers can
// read.
func (r report) write(file string, history []register.Operation) error {
	for name, value := range map[string]any{file: r, filepath.Join(reportDir(file), "operations.json"): history} {
		text, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, append(text, '\n'), 0o644); err != nil {
			return fmt.Errorf("report: cannot write: %w", err)
		}
	}
	return nil
}

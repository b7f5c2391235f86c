package secureboot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Deadline is the timeout of a check. A boot image has some tens of MiB. An emulated processor
// computes its digest within seconds.
const Deadline = 30 * time.Second

// Start runs the checking process until it ends. question is its standard input, files are its
// descriptors from 3 on, and most is the limit of its output in bytes. Start returns the standard
// output.
type Start func(ctx context.Context, question []byte, files []*os.File, most int) ([]byte, error)

// Checker checks whether the firmware would start a boot image, in a checking process.
type Checker struct {
	Dir   string // directory of the variables (bootenv.VariablesDir)
	Start Start  // starts the checking process
}

// question is the request of PID 1 to the checking process, in JSON. answer is the response.
type question struct {
	DB  []byte `json:"db"`
	DBX []byte `json:"dbx"`
}

type answer struct {
	Refused string `json:"refused,omitempty"` // the reason; empty if the image is accepted
}

// Limits of the answer of the checking process.
const (
	maxAnswer = 64 << 10 // bytes
	maxReason = 2 << 10  // characters
)

// Check returns an error if Secure Boot is enabled and the firmware would not start an image, or if
// this cannot be determined. Without Secure Boot it reads only the state.
func (c Checker) Check(ctx context.Context, image *os.File) error {
	enabled, err := c.enabled()
	if err != nil || !enabled {
		return err
	}
	return c.ask(ctx, image)
}

// enabled reports whether Secure Boot is enabled.
func (c Checker) enabled() (bool, error) {
	mode, err := ReadMode(c.Dir)
	if err != nil {
		return false, fmt.Errorf("the state of Secure Boot cannot be read: %w", err)
	}
	return mode == Enabled, nil
}

// ask sends the databases and the image to the checking process. It returns an error for a refusal.
func (c Checker) ask(ctx context.Context, image *os.File) error {
	db, dbx, err := readDatabases(c.Dir)
	if err != nil {
		return fmt.Errorf("the keys of Secure Boot cannot be read: %w", err)
	}
	text, err := json.Marshal(question{DB: db, DBX: dbx})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	out, err := c.Start(ctx, text, []*os.File{image}, maxAnswer)
	if err != nil {
		return fmt.Errorf("the signature of the boot image cannot be checked: %w", err)
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil {
		return errors.New("the signature of the boot image cannot be checked: the process gives no valid answer")
	}
	if a.Refused != "" {
		return fmt.Errorf("the firmware would not start it, because Secure Boot is enabled: %s; use a version that is signed with a key of this machine", sanitize.ASCII(a.Refused, maxReason))
	}
	return nil
}

// CheckBytes is Check for an image in memory.
func (c Checker) CheckBytes(ctx context.Context, image []byte) error {
	enabled, err := c.enabled()
	if err != nil || !enabled {
		return err
	}
	f, err := safefile.InMemory("boot image", image)
	if err != nil {
		return fmt.Errorf("the boot image cannot be passed to its check: %w", err)
	}
	defer f.Close()
	return c.ask(ctx, f)
}

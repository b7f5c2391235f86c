package secureboot

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/orlop-os/orlop/pkg/kernel/confine"
)

// imageFile is the number of the descriptor with the image in the checking process.
const imageFile = 3

// Limits of the checking process. It reads the image in pieces.
const (
	maxMemory = 256 << 20 // bytes (confine.ParserLimits)
	maxCPU    = 20        // seconds
	maxFiles  = 64        // file descriptors
)

// Environment is the complete environment of the checking process.
var Environment = []string{"GOMEMLIMIT=64MiB", "GOMAXPROCS=1", "GOTRACEBACK=none"}

// Main is the main function of the checking process. It drops its privileges, checks the image,
// writes the answer, and returns the exit status.
func Main() int {
	if err := respond(os.Stdin, os.Stdout, os.NewFile(imageFile, "boot image"), confineSelf); err != nil {
		fmt.Fprintln(os.Stderr, "bootcheck:", err)
		return 1
	}
	return 0
}

// confineSelf drops all privileges that the check does not need.
func confineSelf() error {
	return confine.Process(confine.Rules{Calls: confine.ParserCalls, Limits: confine.ParserLimits(maxMemory, maxCPU, maxFiles)})
}

// respond reads the question, which PID 1 has written. Then it calls confined, which drops all
// privileges, before it parses the databases and the image.
func respond(in io.Reader, out io.Writer, image *os.File, confined func() error) error {
	var q question
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("cannot parse the question: %w", err)
	}
	if err := confined(); err != nil {
		return err
	}
	info, err := image.Stat()
	if err != nil {
		return err
	}
	var a answer
	if err := Accept(image, info.Size(), q.DB, q.DBX); err != nil {
		a.Refused = err.Error()
	}
	return json.NewEncoder(out).Encode(a)
}

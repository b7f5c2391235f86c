// Package pause makes the container image of the process that holds a pod's namespaces. It is the
// only image that is part of the system.
//
// The program is 40 lines of C without a C library (src/pause.c). It is C and not Go because each
// pod runs the program: a Go runtime would cost each pod more than a megabyte, and this program
// costs a few pages. A compiler is needed for runc anyway.
package pause

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/orlop-os/orlop/imager/ociarchive"
)

//go:embed src/pause.c
var source []byte

// Reference is the image's name. The name is our own, because the program is not the published
// pause program, and a name that no registry serves is never pulled by mistake.
const Reference = "orlop.dev/pause:1"

// flags make a small static executable that depends on the compiler's version only: no path, no
// build id, no sections for unwinding, and no page that is both writable and executable.
var flags = []string{
	"-x", "c", "-std=c11", "-Os", "-Wall", "-Wextra", "-Werror",
	"-static", "-nostdlib", "-ffreestanding", "-fno-asynchronous-unwind-tables", "-fno-stack-protector",
	"-fcf-protection=none", "-Wl,--build-id=none,-z,noseparate-code,-z,noexecstack,-s",
}

// Image returns the image of the program with a separate creation time. The user is 65535, as in
// upstream's pause image.
func Image(program []byte, created time.Time) ociarchive.Image {
	image := ociarchive.Program(Reference, "pause", program)
	image.Config.User, image.Created = "65535:65535", created
	return image
}

// Compile builds the program in the directory work and returns its bytes.
func Compile(work string) ([]byte, error) {
	out := filepath.Join(work, "pause")
	c := exec.Command("gcc", append(flags, "-o", out, "-")...)
	c.Stdin = strings.NewReader(string(source))
	if msg, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pause: cannot compile: %w: %s", err, strings.TrimSpace(string(msg)))
	}
	return os.ReadFile(out)
}

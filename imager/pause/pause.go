// Package pause makes the container image of the process that holds the namespaces of a pod. Each
// image of the system contains this container image.
//
// The program is 40 lines of C without a C library (src/pause.c). It is not in Go because each pod
// runs it: a Go runtime needs more than a megabyte of memory, and this program needs a few pages.
// The build needs a C compiler for runc anyway.
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

// Reference is the name of the container image. Its program differs from the published pause
// program, so it has another name. No registry serves this name, so no machine pulls another image
// by mistake.
const Reference = "orlop.dev/pause:1"

// flags make a small static executable that depends only on the version of the compiler: no path,
// no build ID, no sections for unwinding, and no page that is both writable and executable.
var flags = []string{
	"-x", "c", "-std=c11", "-Os", "-Wall", "-Wextra", "-Werror",
	"-static", "-nostdlib", "-ffreestanding", "-fno-asynchronous-unwind-tables", "-fno-stack-protector",
	"-fcf-protection=none", "-Wl,--build-id=none,-z,noseparate-code,-z,noexecstack,-s",
}

// Image returns the container image of the program. created is its creation time. The user is
// 65535, as in upstream's pause image.
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

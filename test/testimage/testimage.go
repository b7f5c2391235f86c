// Package testimage makes the container image that the stories and the measuring programs use.
package testimage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/orlop-os/orlop/imager/ociarchive"
)

// program is the Go package of the only program in the image, which is a web server and a client.
const program = "github.com/orlop-os/orlop/test/integration/testpod"

// Write builds the program and writes an OCI archive of an image with this name. The image has a
// label with its name. Images with different names therefore have different digests, and one image
// can be in use while another image is not.
func Write(ctx context.Context, file, name string) error {
	content, err := build(ctx)
	if err != nil {
		return err
	}
	image := ociarchive.Program(name, "testpod", content)
	image.Config.Labels = map[string]string{"name": name}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	return errors.Join(ociarchive.Write(out, image), out.Close())
}

func build(ctx context.Context) ([]byte, error) {
	dir, err := os.MkdirTemp("", "orlop-program-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "program")
	compile := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, program)
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := compile.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: cannot build: %w: %s", program, err, text)
	}
	return os.ReadFile(out)
}

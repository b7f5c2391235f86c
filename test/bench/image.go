package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// imageName is the image that the pod runs: the stories' web server, which is two to three times as large as the baseline's busybox.
const imageName = "test.orlop.dev/bench:1"

// podProgram is the package that the image is made from.
const podProgram = "github.com/orlop-os/orlop/test/integration/testpod"

// descriptor points to a part of an image (OCI image specification, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// buildImage compiles the pod's program and writes it to file as an OCI archive with one layer, the form that the baseline's image has.
func buildImage(ctx context.Context, file string) error {
	dir, err := os.MkdirTemp("", "orlop-bench-")
	if err != nil {
		return fmt.Errorf("pod image: cannot make a folder: %w", err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "testpod")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, podProgram)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("pod image: cannot build its program: %w: %s; run bench in the repository", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("pod image: cannot read its program: %w", err)
	}
	text, err := archive(content)
	if err != nil {
		return fmt.Errorf("pod image: cannot make: %w", err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("pod image: cannot write: %w", err)
	}
	return nil
}

// archive is an OCI archive of an image that holds one program and runs it.
func archive(program []byte) ([]byte, error) {
	var layer, out bytes.Buffer
	l := tar.NewWriter(&layer)
	if err := addFile(l, "testpod", 0o755, program); err != nil {
		return nil, err
	}
	if err := l.Close(); err != nil {
		return nil, err
	}
	w := tar.NewWriter(&out)
	blob := func(mediaType string, content []byte) (descriptor, error) {
		sum := sha256.Sum256(content)
		return descriptor{MediaType: mediaType, Digest: fmt.Sprintf("sha256:%x", sum), Size: len(content)},
			addFile(w, fmt.Sprintf("blobs/sha256/%x", sum), 0o644, content)
	}
	document := func(mediaType string, value any) (descriptor, error) {
		text, err := json.Marshal(value)
		if err != nil {
			return descriptor{}, err
		}
		return blob(mediaType, text)
	}
	layers, err := blob("application/vnd.oci.image.layer.v1.tar", layer.Bytes())
	if err != nil {
		return nil, err
	}
	config, err := document("application/vnd.oci.image.config.v1+json", map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Entrypoint": []string{"/testpod"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layers.Digest}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := document("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []descriptor{layers},
	})
	if err != nil {
		return nil, err
	}
	manifest.Annotations = map[string]string{"io.containerd.image.name": imageName}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})
	if err != nil {
		return nil, err
	}
	if err := addFile(w, "oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return nil, err
	}
	if err := addFile(w, "index.json", 0o644, index); err != nil {
		return nil, err
	}
	return out.Bytes(), w.Close()
}

func addFile(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

package pause

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Archive returns an OCI archive (a tar of an OCI image layout) of an image that holds one program and starts it.
// The archive carries the reference in the annotation that containerd reads on import. The user is nobody (65535, as
// upstream's pause image has it). Same input, same bytes.
func Archive(reference, name string, program []byte, created time.Time) ([]byte, error) {
	image, err := singleProgram(name, program, created)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", reference, err)
	}
	dir, err := os.MkdirTemp("", "orlop-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", reference, err)
	}
	err = path.AppendImage(image, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          reference,
		"org.opencontainers.image.ref.name": reference,
	}))
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", reference, err)
	}
	return tarFolder(dir)
}

func singleProgram(name string, program []byte, created time.Time) (v1.Image, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := addFile(w, name, 0o755, program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Created = v1.Time{Time: created.UTC()}
	config.Config.Entrypoint = []string{"/" + name}
	config.Config.User = "65535:65535"
	return mutate.ConfigFile(image, config)
}

// tarFolder packs the files of a folder, in the order of their names, without times and owners.
func tarFolder(dir string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return addFile(w, filepath.ToSlash(name), 0o644, data)
	})
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func addFile(w *tar.Writer, name string, mode int64, data []byte) error {
	h := &tar.Header{Name: name, Mode: mode, Size: int64(len(data)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

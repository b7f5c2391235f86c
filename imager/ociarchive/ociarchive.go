// Package ociarchive builds container images and OCI artifacts from local files. It writes them as
// OCI archives (a tar of an OCI image layout), which a machine can import. If several images share
// a blob, the archive contains it only once. Equal input gives equal bytes. The package does not
// pull or push.
package ociarchive

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image is a Linux image for amd64.
type Image struct {
	// Name is the image name in containerd after the import.
	Name string
	// Layers are stacked, the last layer on top.
	Layers []Layer
	// Config is the execution configuration (OCI image specification, config.md).
	Config v1.Config
	// Created is the creation time; the zero time is omitted.
	Created time.Time
	// ConfigType is the media type of the configuration. It is empty for a container image. With
	// another media type, the image is an OCI artifact, which cannot run.
	ConfigType string
}

// Layer maps absolute clean paths to files. Parent directories may be omitted.
type Layer map[string]File

// File is a file of an image. It is a directory if Mode has the directory bit, a symbolic link if
// Target is set, and otherwise a regular file. root owns all files.
type File struct {
	Mode    fs.FileMode
	Target  string
	Content []byte
}

// Program returns an image with a single static program, /NAME, as its entry point.
func Program(image, name string, content []byte) Image {
	return Image{
		Name:   image,
		Layers: []Layer{{"/" + name: {Mode: 0o755, Content: content}}},
		Config: v1.Config{Entrypoint: []string{"/" + name}},
	}
}

// Write writes an OCI archive with the images to w.
func Write(w io.Writer, images ...Image) error {
	dir, err := os.MkdirTemp("", "orlop-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := WriteLayout(dir, images...); err != nil {
		return err
	}
	if err := tarDirectory(w, dir); err != nil {
		return fmt.Errorf("images: cannot write archive: %w", err)
	}
	return nil
}

// WriteLayout writes an OCI image layout with the images to an existing directory. Write makes a
// tar of such a directory.
func WriteLayout(dir string, images ...Image) error {
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("images: cannot create directory: %w", err)
	}
	for _, i := range images {
		image, err := i.build()
		if err == nil {
			err = path.AppendImage(image, layout.WithAnnotations(map[string]string{
				"io.containerd.image.name":          i.Name,
				"org.opencontainers.image.ref.name": i.Name,
			}))
		}
		if err != nil {
			return fmt.Errorf("image %s: cannot build: %w", i.Name, err)
		}
	}
	return nil
}

func (i Image) build() (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range i.Layers {
		var content bytes.Buffer
		if err := l.write(&content); err != nil {
			return nil, err
		}
		var err error
		// The layer is not compressed. A machine unpacks it only once, after the import. On
		// emulated machines, decompression takes longer than reading.
		if image, err = mutate.AppendLayers(image, static.NewLayer(content.Bytes(), types.OCIUncompressedLayer)); err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config = "linux", "amd64", i.Config
	if !i.Created.IsZero() {
		config.Created = v1.Time{Time: i.Created.UTC()}
	}
	if image, err = mutate.ConfigFile(image, config); err != nil || i.ConfigType == "" {
		return image, err
	}
	// This is the last step, because mutate adds layers only to images with the type of container
	// images.
	return mutate.ConfigMediaType(image, types.MediaType(i.ConfigType)), nil
}

// Digest returns the digest of the manifest, "sha256:…", which identifies the image in a registry.
func (i Image) Digest() (string, error) {
	image, err := i.build()
	if err != nil {
		return "", fmt.Errorf("image %s: cannot build: %w", i.Name, err)
	}
	digest, err := image.Digest()
	return digest.String(), err
}

func (l Layer) write(out io.Writer) error {
	w := tar.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(l)) { // a directory comes before its content
		f := l[name]
		h := header(strings.TrimPrefix(name, "/"), mode(f.Mode), int64(len(f.Content)))
		switch {
		case f.Mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case f.Target != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
		}
		if err := add(w, h, f.Content); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return w.Close()
}

// mode returns the permission bits for tar. Go has setuid, setgid and sticky at other positions.
func mode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	for special, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&special != 0 {
			bits |= bit
		}
	}
	return bits
}

// tarDirectory writes the regular files of a directory as a tar, sorted by name.
func tarDirectory(out io.Writer, dir string) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return add(w, header(filepath.ToSlash(name), 0o644, int64(len(content))), content)
	})
	if err != nil {
		return err
	}
	return w.Close()
}

// header returns the tar header of a regular file, with time 0 and owner root.
func header(name string, mode, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: time.Unix(0, 0)}
}

func add(w *tar.Writer, h *tar.Header, content []byte) error {
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

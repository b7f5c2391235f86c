// Package ociarchive makes container images, and artefacts that are none, of files that are at
// hand, as OCI archives (a tar of an OCI image layout) that a machine imports. What images have in
// common is in an archive once. It does not pull and does not push. Same input, same bytes.
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
	// Name is what containerd imports it as.
	Name string
	// Layers lie over each other, the last one on top.
	Layers []Layer
	// Config is how it is started (OCI image specification, config.md).
	Config v1.Config
	// Created is when it was made; the zero time: nobody says.
	Created time.Time
	// ConfigType is the media type of its configuration; empty: an image's. With another one it is
	// an artefact, of which nothing runs.
	ConfigType string
}

// Layer is files by absolute clean paths. The folders above them need not be named.
type Layer map[string]File

// File is one file of an image: a folder if Mode says so, a symbolic link if Target does, else a
// regular file. All belong to root.
type File struct {
	Mode    fs.FileMode
	Target  string
	Content []byte
}

// Program is an image that holds one static program, NAME at the top, and starts it.
func Program(image, name string, content []byte) Image {
	return Image{
		Name:   image,
		Layers: []Layer{{"/" + name: {Mode: 0o755, Content: content}}},
		Config: v1.Config{Entrypoint: []string{"/" + name}},
	}
}

// Write writes an archive of images.
func Write(w io.Writer, images ...Image) error {
	dir, err := os.MkdirTemp("", "orlop-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := WriteLayout(dir, images...); err != nil {
		return err
	}
	if err := tarFolder(w, dir); err != nil {
		return fmt.Errorf("images: cannot write archive: %w", err)
	}
	return nil
}

// WriteLayout puts images into a folder that is there: what an archive of them holds.
func WriteLayout(dir string, images ...Image) error {
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("images: cannot make their folder: %w", err)
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
			return fmt.Errorf("image %s: cannot make: %w", i.Name, err)
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
		// Not compressed: what is imported once is unpacked once, and emulated machines take longer
		// for that than for reading it.
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
	// last: it knows the layers of images only
	return mutate.ConfigMediaType(image, types.MediaType(i.ConfigType)), nil
}

// Digest is that of the image's manifest, "sha256:…": what it is known by in a registry.
func (i Image) Digest() (string, error) {
	image, err := i.build()
	if err != nil {
		return "", fmt.Errorf("image %s: cannot make: %w", i.Name, err)
	}
	digest, err := image.Digest()
	return digest.String(), err
}

func (l Layer) write(out io.Writer) error {
	w := tar.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(l)) { // a folder comes before what is in it
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

// mode is a file's mode as tar has it: Go keeps the three special bits elsewhere.
func mode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	for special, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&special != 0 {
			bits |= bit
		}
	}
	return bits
}

// tarFolder packs the regular files of a folder, in the order of their names.
func tarFolder(out io.Writer, dir string) error {
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

// header has neither a time nor an owner of its own.
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

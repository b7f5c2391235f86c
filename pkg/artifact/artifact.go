// Package artifact is the OCI artefact that an add-on has its manifests in: which blobs it consists
// of, the texts in them, and a folder that keeps both by their digests. It knows no registry and no
// Kubernetes: where blobs come from is its caller's (Origin), and whether a text is YAML is for
// whoever reads it.
//
// An artefact is an image manifest of OCI (image-spec, manifest.md), of whatever artifactType and
// config, as `oras push` and `flux push artifact` make them. A layer is a file by itself, or a tar
// of files, either of them compressed by gzip or not; which one is told by the bytes, because the
// media types are everybody's own. Of the files those count whose names end with .yaml, .yml or
// .json, and layers that have no name.
//
// What comes in is believed by its digest alone, and its digest says only that it is what a
// document names: all of it may be hostile. So everything is bounded before it is read, and nothing
// of an archive is written anywhere.
package artifact

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The bounds of an artefact.
const (
	MaxManifest = 1 << 20  // bytes of the manifest
	MaxSize     = 16 << 20 // bytes of all layers together, as they were pushed
	MaxUnpacked = 32 << 20 // bytes of all layers together, unpacked; with all that is not a text
	MaxLayers   = 256
	MaxFiles    = 4096 // in all archives together
)

// Blob is a piece of an artefact.
type Blob struct {
	SHA256 string // lower-case hexadecimal
	Size   int64  // bytes; negative: not known, as of a manifest
}

// Layer is a blob that holds files.
type Layer struct {
	Blob
	Name string // of the file, where the layer is one; may be empty
}

// Layers reads a manifest.
func Layers(manifest []byte) ([]Layer, error) {
	var m struct {
		Layers    Descriptors     `json:"layers"`
		Manifests json.RawMessage `json:"manifests"` // of an index
	}
	if len(manifest) > MaxManifest {
		return nil, fmt.Errorf("its manifest has more than %d MiB", MaxManifest>>20)
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("its manifest cannot be read: %w", err)
	}
	if m.Manifests != nil {
		return nil, errors.New("it is an index of several manifests; name the digest of the one that is meant")
	}
	if len(m.Layers) == 0 || len(m.Layers) > MaxLayers {
		return nil, fmt.Errorf("it has %d layers, and not 1 to %d", len(m.Layers), MaxLayers)
	}
	var all []Layer
	left := int64(MaxSize)
	for _, l := range m.Layers {
		if err := l.Digest.Validate(); err != nil || l.Digest.Algorithm() != digest.SHA256 {
			return nil, fmt.Errorf("the digest of a layer, %q, is no SHA-256", l.Digest)
		}
		if l.Size < 0 || l.Size > left {
			return nil, fmt.Errorf("its layers have more than %d MiB together", MaxSize>>20)
		}
		left -= l.Size
		all = append(all, Layer{Blob{l.Digest.Encoded(), l.Size}, l.Annotations[ocispec.AnnotationTitle]})
	}
	return all, nil
}

// Text is a file of an artefact.
type Text struct {
	Name    string // as in its archive; not that of another text
	Content string // UTF-8
}

// Texts are the files of an artefact, in the order in which they lie in it. read gives the content
// of a layer.
func Texts(layers []Layer, read func(Layer) ([]byte, error)) ([]Text, error) {
	return texts(layers, read, MaxUnpacked)
}

func texts(layers []Layer, read func(Layer) ([]byte, error), most int64) ([]Text, error) {
	u := unpacking{left: most, most: most, names: map[string]bool{}}
	for i, l := range layers {
		content, err := read(l)
		if err != nil {
			return nil, err
		}
		if l.Name == "" {
			l.Name = fmt.Sprintf("layer %d", i+1)
		} else if !counts(l.Name) {
			l.Name = ignored
		}
		if err := u.layer(l.Name, content); err != nil {
			return nil, err
		}
	}
	if len(u.all) == 0 {
		return nil, errors.New("it holds no file of YAML or JSON (.yaml, .yml, .json)")
	}
	return u.all, nil
}

// ignored is the name of a layer that is no text by its name. It may be an archive all the same, as
// those of folders are.
const ignored = ""

// counts says whether a file is read.
func counts(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// unpacking collects the texts of an artefact.
type unpacking struct {
	left, most int64 // bytes that may still be unpacked, and that could be at first
	files      int
	names      map[string]bool
	all        []Text
}

// errLarge is the end of what may be unpacked.
var errLarge = errors.New("too large")

// bounded reads until nothing is left.
type bounded struct {
	io.Reader
	left *int64
}

func (b bounded) Read(p []byte) (int, error) {
	if *b.left <= 0 {
		if n, err := b.Reader.Read(p[:min(len(p), 1)]); n == 0 {
			return 0, err
		}
		return 0, errLarge
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), *b.left)])
	*b.left -= int64(n)
	return n, err
}

// layer takes the texts of one layer.
func (u *unpacking) layer(name string, content []byte) error {
	plain := io.Reader(bytes.NewReader(content))
	switch {
	case bytes.HasPrefix(content, []byte{0x1f, 0x8b}): // RFC 1952, 2.3.1
		unzipped, err := gzip.NewReader(plain)
		if err != nil {
			return fmt.Errorf("%s: %w", place(name), u.reason(err))
		}
		plain = unzipped
	case bytes.HasPrefix(content, []byte{0x28, 0xb5, 0x2f, 0xfd}): // RFC 8878, 3.1.1
		return fmt.Errorf("%s: is compressed by zstd; gzip and none are read", place(name))
	}
	const block = 512 // of a tar, the header of the first file among them
	in := bufio.NewReaderSize(bounded{plain, &u.left}, block)
	head, err := in.Peek(block)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("%s: %w", place(name), u.reason(err))
	// pax(1), "ustar Interchange Format"
	case err == nil && bytes.HasPrefix(head[257:], []byte("ustar")):
		return u.archive(name, in)
	case name == ignored:
		return nil
	}
	return u.file(name, in)
}

// place names a layer in messages.
func place(name string) string {
	if name == ignored {
		return "a layer"
	}
	return printed(name)
}

// archive takes the texts of a tar.
func (u *unpacking) archive(name string, in io.Reader) error {
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: the archive cannot be read: %w", place(name), u.reason(err))
		}
		if u.files++; u.files > MaxFiles {
			return fmt.Errorf("it holds more than %d files", MaxFiles)
		}
		switch h.Typeflag {
		case tar.TypeXGlobalHeader, tar.TypeDir:
			continue
		case tar.TypeReg:
		default:
			return fmt.Errorf("%s: is a link or a device, and only files are read", printed(h.Name))
		}
		clean := path.Clean(h.Name)
		if !filepath.IsLocal(h.Name) {
			return fmt.Errorf("%s: leads out of the archive", printed(h.Name))
		}
		if !counts(clean) {
			continue
		}
		if h.Size > u.left { // of a sparse file, which is longer than what stands in the archive
			return fmt.Errorf("%s: %w", printed(clean), u.reason(errLarge))
		}
		if err := u.file(clean, r); err != nil {
			return err
		}
	}
}

// file takes a text.
func (u *unpacking) file(name string, in io.Reader) error {
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%s: is no name of a file", printed(name))
		}
	}
	base := path.Base(name)
	switch {
	case u.names[name]:
		return fmt.Errorf("%s: is there twice", printed(name))
	case strings.HasPrefix(base, ".wh."): // image-spec, layer.md, "Whiteouts"
		return fmt.Errorf("%s: takes a file of another layer away, and layers are read as they are", printed(name))
	case base == "kustomization.yaml", base == "kustomization.yml", base == "Chart.yaml":
		return fmt.Errorf("%s: is a source, and no object; push what `kustomize build` or `helm template` print", printed(name))
	}
	content, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("%s: %w", printed(name), u.reason(err))
	}
	if !utf8.Valid(content) || bytes.IndexByte(content, 0) >= 0 {
		return fmt.Errorf("%s: is neither a text nor an archive", printed(name))
	}
	u.names[name] = true
	u.all = append(u.all, Text{name, string(content)})
	return nil
}

// reason is an error as people read it.
func (u *unpacking) reason(err error) error {
	if errors.Is(err, errLarge) {
		return fmt.Errorf("the layers have more than %d bytes together when they are unpacked", u.most)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it is cut off")
	}
	return err
}

// printed is a name in a message. It comes from an archive.
func printed(name string) string {
	const most = 100
	if len(name) > most {
		name = name[:most] + "…"
	}
	return fmt.Sprintf("%q", name)
}

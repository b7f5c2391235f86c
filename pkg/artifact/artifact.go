// Package artifact reads the OCI artifact that holds the manifests of an add-on: it lists the blobs
// of an artifact, extracts the files from them, and stores the blobs in a directory by digest. It
// accesses no registry, because the caller provides a Source of blobs. It does not interpret the
// manifests, because the caller parses the YAML.
//
// An artifact is an OCI image manifest (image-spec, manifest.md) with any artifactType and config,
// as `oras push` and `flux push artifact` create it. A layer is a single file or a tar archive of
// files, compressed by gzip or not compressed. The package detects the format of a layer from its
// content, because each tool uses other media types. It reads files with the extension .yaml, .yml
// or .json, and single-file layers without a name. It ignores other files.
//
// A digest proves only that a blob is the one that the configuration names. The content can still
// be hostile. Therefore the package limits all sizes while it reads the data, and writes no file of
// an archive to disk.
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

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits of an artifact.
const (
	MaxManifest = 1 << 20  // bytes of the manifest
	MaxSize     = 16 << 20 // bytes of all layers together, as pushed
	MaxUnpacked = 32 << 20 // bytes of all layers together, unpacked, including ignored files
	MaxLayers   = 256
	MaxFiles    = 4096 // in all archives together
)

// Blob identifies the manifest or a layer of an artifact.
type Blob struct {
	SHA256 string // lower-case hexadecimal
	Size   int64  // bytes; negative if unknown, as for a manifest
}

// Layer is a blob that holds files.
type Layer struct {
	Blob
	Name string // name of the file or directory in the layer; empty if the manifest states none
}

// Layers parses a manifest and returns its layers.
func Layers(manifest []byte) ([]Layer, error) {
	var m struct {
		Layers    Descriptors     `json:"layers"`
		Manifests json.RawMessage `json:"manifests"` // present in an index only
	}
	if len(manifest) > MaxManifest {
		return nil, fmt.Errorf("its manifest has more than %d MiB", MaxManifest>>20)
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("its manifest cannot be read: %w", err)
	}
	if m.Manifests != nil {
		return nil, errors.New("it is an index of several manifests; use the digest of one manifest")
	}
	if len(m.Layers) == 0 || len(m.Layers) > MaxLayers {
		return nil, fmt.Errorf("it has %d layers; expected 1 to %d", len(m.Layers), MaxLayers)
	}
	var all []Layer
	left := int64(MaxSize)
	for _, l := range m.Layers {
		if !IsSHA256(l.Digest) {
			return nil, fmt.Errorf("the digest of a layer, %q, is not a SHA-256", l.Digest)
		}
		if l.Size < 0 || l.Size > left {
			return nil, fmt.Errorf("its layers have more than %d MiB in total", MaxSize>>20)
		}
		left -= l.Size
		all = append(all, Layer{Blob{l.Digest.Encoded(), l.Size}, l.Annotations[ocispec.AnnotationTitle]})
	}
	return all, nil
}

// Text is a file of an artifact.
type Text struct {
	Name    string // path in its archive, or the name of its layer; unique in the artifact
	Content string // UTF-8
}

// Texts returns the files of an artifact in the order in which the artifact stores them. It calls
// read(layer) for the content of each layer.
func Texts(layers []Layer, read func(Layer) ([]byte, error)) ([]Text, error) {
	return texts(layers, read, MaxUnpacked)
}

// texts is Texts with a limit for the bytes of all unpacked layers together.
func texts(layers []Layer, read func(Layer) ([]byte, error), limit int64) ([]Text, error) {
	u := unpacking{left: limit, limit: limit, names: map[string]bool{}}
	for i, l := range layers {
		content, err := read(l)
		if err != nil {
			return nil, err
		}
		if l.Name == "" {
			l.Name = fmt.Sprintf("layer %d", i+1)
		} else if !isText(l.Name) {
			l.Name = ignored
		}
		if err := u.addLayer(l.Name, content); err != nil {
			return nil, err
		}
	}
	if len(u.all) == 0 {
		return nil, errors.New("it holds no file of YAML or JSON (.yaml, .yml, .json)")
	}
	return u.all, nil
}

// ignored replaces the name of a layer whose extension is not that of a text. Such a layer is
// skipped unless it is an archive. An archive needs no extension, because oras gives the archive of
// a directory the name of the directory.
const ignored = ""

// isText reports whether the package reads a file of this name.
func isText(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// unpacking collects the files of an artifact.
type unpacking struct {
	limit int64 // maximum number of unpacked bytes
	left  int64 // how many of them are not used up
	files int   // number of files in archives so far
	names map[string]bool
	all   []Text
}

// errLarge is the error for unpacked data of more than unpacking.limit bytes.
var errLarge = errors.New("too large")

// bounded is a reader that subtracts the bytes that it has read from *left, which all layers share.
// If *left is 0 and there are more bytes, it returns errLarge.
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

// addLayer adds the files of a layer.
func (u *unpacking) addLayer(name string, content []byte) error {
	plain := io.Reader(bytes.NewReader(content))
	switch {
	case bytes.HasPrefix(content, []byte{0x1f, 0x8b}): // RFC 1952, 2.3.1
		unzipped, err := gzip.NewReader(plain)
		if err != nil {
			return fmt.Errorf("%s: %w", layerName(name), u.reason(err))
		}
		plain = unzipped
	case bytes.HasPrefix(content, []byte{0x28, 0xb5, 0x2f, 0xfd}): // RFC 8878, 3.1.1
		return fmt.Errorf("%s: is compressed by zstd; only gzip is supported", layerName(name))
	}
	const block = 512 // bytes of a block of a tar archive; its first block is the header of a file
	in := bufio.NewReaderSize(bounded{plain, &u.left}, block)
	head, err := in.Peek(block)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("%s: %w", layerName(name), u.reason(err))
	// pax(1), "ustar Interchange Format"
	case err == nil && bytes.HasPrefix(head[257:], []byte("ustar")):
		return u.addArchive(name, in)
	case name == ignored:
		return nil
	}
	return u.addFile(name, in)
}

// layerName returns the quoted name of a layer for messages.
func layerName(name string) string {
	if name == ignored {
		return "a layer"
	}
	return quoted(name)
}

// addArchive adds the files of a tar archive.
func (u *unpacking) addArchive(name string, in io.Reader) error {
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: the archive cannot be read: %w", layerName(name), u.reason(err))
		}
		if u.files++; u.files > MaxFiles {
			return fmt.Errorf("it holds more than %d files", MaxFiles)
		}
		switch h.Typeflag {
		case tar.TypeXGlobalHeader, tar.TypeDir:
			continue
		case tar.TypeReg:
		default:
			return fmt.Errorf("%s: is a link or a device; only regular files are supported", quoted(h.Name))
		}
		clean := path.Clean(h.Name)
		if !filepath.IsLocal(h.Name) {
			return fmt.Errorf("%s: has a path outside of the archive", quoted(h.Name))
		}
		if !isText(clean) {
			continue
		}
		if h.Size > u.left { // A sparse file can be longer than its data in the archive.
			return fmt.Errorf("%s: %w", quoted(clean), u.reason(errLarge))
		}
		if err := u.addFile(clean, r); err != nil {
			return err
		}
	}
}

// addFile adds a file and checks its name and content.
func (u *unpacking) addFile(name string, in io.Reader) error {
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%s: is not a valid file name", quoted(name))
		}
	}
	base := path.Base(name)
	switch {
	case u.names[name]:
		return fmt.Errorf("%s: occurs twice", quoted(name))
	case strings.HasPrefix(base, ".wh."): // image-spec, layer.md, "Whiteouts"
		return fmt.Errorf("%s: is a whiteout, which is not supported", quoted(name))
	case base == "kustomization.yaml", base == "kustomization.yml", base == "Chart.yaml":
		return fmt.Errorf("%s: is a source, not an object; push the output of `kustomize build` or `helm template`", quoted(name))
	}
	content, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("%s: %w", quoted(name), u.reason(err))
	}
	if !utf8.Valid(content) || bytes.IndexByte(content, 0) >= 0 {
		return fmt.Errorf("%s: is neither a text nor an archive", quoted(name))
	}
	u.names[name] = true
	u.all = append(u.all, Text{name, string(content)})
	return nil
}

// reason translates an error for the operator.
func (u *unpacking) reason(err error) error {
	if errors.Is(err, errLarge) {
		return fmt.Errorf("the unpacked layers have more than %d bytes in total", u.limit)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it is truncated")
	}
	return err
}

// quoted returns a name for a message, quoted and shortened, because it comes from an untrusted
// archive.
func quoted(name string) string {
	const limit = 100
	if len(name) > limit {
		name = name[:limit] + "…"
	}
	return fmt.Sprintf("%q", name)
}

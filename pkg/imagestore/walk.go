package imagestore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The limits for the documents behind a name. An index may refer to further indexes, and the author
// of an archive chooses their number. PID 1 reads all of them, so their depth, their number of
// entries and their size are bounded. Usual images have one index, a few dozen entries and some
// kilobytes.
const (
	maxDepth     = 4        // nested indexes
	maxManifests = 512      // manifests, indexes and configurations to read
	maxEntries   = 8192     // entries of all of them: layers, configurations, manifests
	maxText      = 16 << 20 // bytes of all of them
	// per image; the kernel cannot mount more (Linux, fs/overlayfs/params.h, OVL_MAX_STACK)
	maxLayers = 500
)

// errBounds is returned for an image beyond the limits.
var errBounds = errors.New("its manifests exceed the limits of an image")

// walk reads the manifests behind a name, within the limits.
type walk struct {
	read      texts
	configs   bool // verify the platform of each image in its configuration
	manifests int
	entries   int
	bytes     int64
	others    []string // platforms of images for other machines
}

// image is an image for this machine, or an artifact.
type image struct {
	ocispec.Descriptor
	manifest manifest
	above    int64 // total size of the indexes above it in bytes
	// uncompressed digests from the configuration; only if the walk reads configurations
	layers []digest.Digest
}

// text reads a document.
func (w *walk) text(d digest.Digest) ([]byte, error) {
	if w.manifests++; w.manifests > maxManifests {
		return nil, fmt.Errorf("%w: more than %d manifests", errBounds, maxManifests)
	}
	text, err := w.read(d.String())
	if err != nil {
		return nil, err
	}
	if w.bytes += int64(len(text)); w.bytes > maxText {
		return nil, fmt.Errorf("%w: more than %d MiB", errBounds, maxText>>20)
	}
	return text, nil
}

// open reads a manifest or an index at a nesting depth.
func (w *walk) open(d digest.Digest, depth int) (manifest, error) {
	text, err := w.text(d)
	if err != nil {
		return manifest{}, err
	}
	m, err := decoded(d.String(), text)
	if err != nil {
		return m, err
	}
	if len(m.Manifests) > 0 && depth >= maxDepth {
		return m, fmt.Errorf("%w: more than %d nested indexes", errBounds, maxDepth)
	}
	if w.entries += len(m.Manifests) + len(m.Layers) + 1; w.entries > maxEntries {
		return m, fmt.Errorf("%w: more than %d entries", errBounds, maxEntries)
	}
	if len(m.Layers) > maxLayers {
		return m, fmt.Errorf("%w: %d layers, limit %d", errBounds, len(m.Layers), maxLayers)
	}
	return m, nil
}

// choose returns the image for this machine behind a descriptor by containerd's rule for a
// container (core/images, Manifest): the first match in the order of the indexes. Without a match
// it returns the first artifact, or nil.
func (w *walk) choose(d ocispec.Descriptor, depth int) (*image, error) {
	m, err := w.open(d.Digest, depth)
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) == 0 {
		return w.judge(d, m, depth)
	}
	var artifact *image
	var missing error
	for _, entry := range m.Manifests {
		if p := entry.Platform; p != nil && !ours(*p) {
			w.other(*p)
			continue
		}
		if entry.Annotations[attestation] != "" {
			continue
		}
		found, err := w.choose(entry, depth+1)
		switch {
		// an archive for one platform may contain the index for all
		case errors.Is(err, fs.ErrNotExist):
			missing = err
			continue
		case err != nil:
			return nil, err
		case found == nil:
			continue
		}
		found.above += d.Size
		if !found.manifest.isArtifact() {
			return found, nil
		}
		if artifact == nil {
			artifact = found
		}
	}
	if artifact == nil {
		return nil, missing
	}
	return artifact, nil
}

// attestation is the annotation of an attestation manifest, in which BuildKit describes the build
// of an image (its docs/attestations, "attestation storage").
const attestation = "vnd.docker.reference.type"

// provenance is the media type of the layers of an attestation. Otherwise an attestation has the
// configuration of an image.
const provenance = "application/vnd.in-toto+json"

// judge returns the image of a manifest if it is for this machine or an artifact, else nil.
func (w *walk) judge(d ocispec.Descriptor, m manifest, depth int) (*image, error) {
	found := &image{Descriptor: d, manifest: m}
	attests := func(l ocispec.Descriptor) bool { return l.MediaType == provenance }
	switch {
	case depth > 0 && slices.ContainsFunc(m.Layers, attests):
		return nil, nil
	case m.isArtifact():
		return found, nil
	// the index or the caller has chosen the platform
	case !w.configs && (depth == 0 || d.Platform != nil):
		return found, nil
	case m.Config.Digest == "":
		return nil, fmt.Errorf("images: %s names no configuration, so it is neither an image nor an artifact (docker's schema 1 is not supported)", d.Digest)
	}
	text, err := w.text(m.Config.Digest)
	if err != nil {
		return nil, fmt.Errorf("its configuration: %w", err)
	}
	var config struct {
		ocispec.Platform
		RootFS ocispec.RootFS `json:"rootfs"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("its configuration cannot be decoded: %w", err)
	}
	// The variant is ignored: containerd does not check it either for an image that an index
	// selects.
	p := ocispec.Platform{OS: config.OS, Architecture: config.Architecture}
	if p.Architecture == "" && depth == 0 {
		p.Architecture = architecture // unknown, and containerd starts it
	}
	if !ours(p) {
		w.other(config.Platform)
		return nil, nil
	}
	found.layers = config.RootFS.DiffIDs
	return found, nil
}

// architecture is this machine's architecture in OCI documents.
const architecture = "amd64"

// ours reports whether a platform is the platform of this machine. It accepts the same spellings as
// containerd (github.com/containerd/platforms).
func ours(p ocispec.Platform) bool {
	if os := strings.ToLower(p.OS); os != "linux" && os != "" {
		return false
	}
	switch strings.ToLower(p.Architecture) {
	case architecture, "x86_64", "x86-64":
		return p.Variant == "" || strings.EqualFold(p.Variant, "v1")
	}
	return false
}

// other records a platform of other machines.
func (w *walk) other(p ocispec.Platform) {
	const most = 8 // in a message
	known := func(s string) string {
		if s == "" {
			return "unknown"
		}
		return printed(s)
	}
	name := known(p.OS) + "/" + known(p.Architecture)
	if p.Variant != "" {
		name += "/" + printed(p.Variant)
	}
	if name != "unknown/unknown" && len(w.others) < most && !slices.Contains(w.others, name) {
		w.others = append(w.others, name)
	}
}

// printed quotes and shortens a word of an archive for a message.
func printed(s string) string {
	const most = 40
	if len(s) > most {
		s = s[:most]
	}
	return strings.Trim(fmt.Sprintf("%q", s), `"`)
}

// grow adds a manifest or an index, with all content that it names, to a tree, and reports whether
// it could read all of it. It skips content for other platforms, which was not imported.
func (w *walk) grow(tree map[string]ocispec.Descriptor, target ocispec.Descriptor, depth int) (whole bool, err error) {
	if _, known := tree[target.Digest.String()]; known {
		return true, nil
	}
	m, err := w.open(target.Digest, depth)
	if errors.Is(err, errBounds) {
		return false, err
	} else if err != nil {
		return false, nil
	}
	tree[target.Digest.String()] = target
	for _, part := range append(m.Layers, m.Config) {
		if part.Digest != "" {
			tree[part.Digest.String()] = part
		}
	}
	whole = true
	for _, part := range m.Manifests {
		if part.Platform != nil && !ours(*part.Platform) {
			continue
		}
		all, err := w.grow(tree, part, depth+1)
		if err != nil {
			return false, err
		}
		whole = whole && all
	}
	return whole, nil
}

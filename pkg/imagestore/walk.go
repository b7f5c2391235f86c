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

// The limits for the documents behind a name. PID 1 reads all manifests and indexes in an archive,
// and an archive can contain any number of nested indexes. Therefore the depth, the number of
// documents and entries, and the total size are bounded. A usual image has an index, a few dozen
// entries and some kilobytes.
const (
	maxDepth     = 4        // nested indexes
	maxManifests = 512      // manifests, indexes and configurations to read
	maxEntries   = 8192     // entries in all documents: layers, configurations, manifests
	maxText      = 16 << 20 // bytes of all documents
	// layers of an image; the kernel cannot mount more (fs/overlayfs/params.h, OVL_MAX_STACK)
	maxLayers = 500
)

// errBounds is the error for an image that exceeds the limits.
var errBounds = errors.New("its manifests exceed the limits of an image")

// walk reads a target, and all manifests and indexes to which it refers, within the limits.
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
	above    int64 // total size of the indexes that lead to it, in bytes
	// digests of the uncompressed layers, from the configuration; only with walk.configs
	layers []digest.Digest
}

// text reads a document, and returns an error if the document exceeds the limits.
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

// choose returns the image for this machine that a descriptor refers to. It follows containerd's
// rule (core/images, Manifest): the first match in the order of the indexes. Without a match, it
// returns the first artifact, or nil.
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
		// An archive for a single platform can contain the index for all platforms.
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

// attestation is an annotation of manifests in which BuildKit describes the build of an image
// (BuildKit calls such a manifest an attestation; docs/attestations, "attestation storage").
const attestation = "vnd.docker.reference.type"

// provenance is the media type of the layers in such a manifest. Only this type distinguishes it
// from an image, because it has the configuration of an image.
const provenance = "application/vnd.in-toto+json"

// judge returns the image of a manifest if the manifest is an artifact or an image for this
// machine, otherwise nil.
func (w *walk) judge(d ocispec.Descriptor, m manifest, depth int) (*image, error) {
	found := &image{Descriptor: d, manifest: m}
	attests := func(l ocispec.Descriptor) bool { return l.MediaType == provenance }
	switch {
	case depth > 0 && slices.ContainsFunc(m.Layers, attests):
		return nil, nil
	case m.isArtifact():
		return found, nil
	// The index states the platform, or the caller has chosen the manifest.
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
	// The variant is ignored: containerd does not check the variant of an image that an index
	// selects, either.
	p := ocispec.Platform{OS: config.OS, Architecture: config.Architecture}
	if p.Architecture == "" && depth == 0 {
		p.Architecture = architecture // unknown; containerd starts such an image
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

// other records a platform that is not that of this machine, for an error text.
func (w *walk) other(p ocispec.Platform) {
	const most = 8 // platforms in a message
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

// printed shortens a word from an archive and escapes its special characters, for a message.
func printed(s string) string {
	const most = 40
	if len(s) > most {
		s = s[:most]
	}
	return strings.Trim(fmt.Sprintf("%q", s), `"`)
}

// grow adds a manifest or an index, and all content that it refers to, to a tree. whole reports
// whether grow could read all manifests. grow skips content for other platforms, because Import
// does not store such content.
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

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

// The bounds of what one name stands for. An index may name indexes, and whoever makes an archive
// decides how many: all of it is read by PID 1, so its depth, its number of entries and its bytes
// end somewhere. Usual images have one index, a few dozen entries and some kilobytes.
const (
	maxDepth     = 4        // indexes, one within the other
	maxManifests = 512      // manifests, indexes and configurations that are read
	maxEntries   = 8192     // entries of all of them together: layers, configurations, manifests
	maxText      = 16 << 20 // bytes of all of them together
	// of one image; more cannot be mounted (Linux, fs/overlayfs/params.h, OVL_MAX_STACK)
	maxLayers = 500
)

// errBounds says of an image that it is larger than the bounds.
var errBounds = errors.New("its manifests exceed the bounds of an image")

// walk reads the manifests of one name, within the bounds.
type walk struct {
	read      texts
	configs   bool // the platform of each image is verified by its configuration
	manifests int
	entries   int
	bytes     int64
	others    []string // the platforms of images that are for other machines
}

// image is one for this machine, or an artefact.
type image struct {
	ocispec.Descriptor
	manifest manifest
	above    int64 // bytes of the indexes that lead to it
	// as its configuration names them, not compressed; only where the walk reads configurations
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

// open reads a manifest or an index below so many indexes.
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
		return m, fmt.Errorf("%w: more than %d indexes, one within the other", errBounds, maxDepth)
	}
	if w.entries += len(m.Manifests) + len(m.Layers) + 1; w.entries > maxEntries {
		return m, fmt.Errorf("%w: more than %d entries", errBounds, maxEntries)
	}
	if len(m.Layers) > maxLayers {
		return m, fmt.Errorf("%w: %d layers, at most are %d", errBounds, len(m.Layers), maxLayers)
	}
	return m, nil
}

// choose finds the image for this machine that a descriptor leads to, as containerd does when a
// container is started (core/images, Manifest): the first one in the order of the indexes. Where
// there is none, the first artefact. nil: neither.
func (w *walk) choose(d ocispec.Descriptor, depth int) (*image, error) {
	m, err := w.open(d.Digest, depth)
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) == 0 {
		return w.judge(d, m, depth)
	}
	var artefact *image
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
		// an archive for one platform may keep the index of all
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
		if artefact == nil {
			artefact = found
		}
	}
	if artefact == nil {
		return nil, missing
	}
	return artefact, nil
}

// attestation is the annotation of what BuildKit says about the making of an image (its
// docs/attestations, "attestation storage").
const attestation = "vnd.docker.reference.type"

// provenance is the media type of the layers of an attestation, which has an image's configuration
// otherwise.
const provenance = "application/vnd.in-toto+json"

// judge tells whether a manifest is of an image for this machine, or of an artefact.
func (w *walk) judge(d ocispec.Descriptor, m manifest, depth int) (*image, error) {
	found := &image{Descriptor: d, manifest: m}
	attests := func(l ocispec.Descriptor) bool { return l.MediaType == provenance }
	switch {
	case depth > 0 && slices.ContainsFunc(m.Layers, attests):
		return nil, nil
	case m.isArtifact():
		return found, nil
	case !w.configs && (depth == 0 || d.Platform != nil): // the index says so, or whoever asks
		return found, nil
	case m.Config.Digest == "":
		return nil, fmt.Errorf("images: %s names no configuration, so it is neither an image nor an artefact (docker's schema 1 is not supported)", d.Digest)
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
	// The variant is left out: what is chosen by its index alone runs or does not, and containerd
	// asks no further.
	p := ocispec.Platform{OS: config.OS, Architecture: config.Architecture}
	if p.Architecture == "" && depth == 0 {
		p.Architecture = architecture // nobody says; containerd starts it
	}
	if !ours(p) {
		w.other(config.Platform)
		return nil, nil
	}
	found.layers = config.RootFS.DiffIDs
	return found, nil
}

// architecture is this machine's, as OCI has it.
const architecture = "amd64"

// ours tells whether a platform is this machine's. Spellings are those that containerd takes for it
// (github.com/containerd/platforms).
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

// other notes a platform that is not this machine's.
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

// printed is a word of an archive in a message.
func printed(s string) string {
	const most = 40
	if len(s) > most {
		s = s[:most]
	}
	return strings.Trim(fmt.Sprintf("%q", s), `"`)
}

// grow adds a manifest or an index to a tree, and what it names, and tells whether all of that
// could be read. What an index names for other machines than these was not imported.
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

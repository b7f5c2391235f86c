package artifact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// IsSHA256 reports whether a digest from an untrusted source is a valid SHA-256.
func IsSHA256(d digest.Digest) bool {
	return d.Validate() == nil && d.Algorithm() == digest.SHA256
}

// MaxDescriptors is the maximum number of entries in a list of a manifest or an index.
const MaxDescriptors = 8192

// ErrDescriptors is returned for a list with more than MaxDescriptors entries.
var ErrDescriptors = errors.New("a manifest with too many entries")

// Descriptors is a list in a manifest or an index (image-spec, descriptor.md) from an untrusted
// source. Decoding stops after MaxDescriptors entries, because an entry of 2 bytes of JSON takes 50
// times as much memory.
type Descriptors []ocispec.Descriptor

// UnmarshalJSON implements json.Unmarshaler.
func (d *Descriptors) UnmarshalJSON(text []byte) error {
	*d = nil
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	list := json.NewDecoder(bytes.NewReader(text))
	if begin, err := list.Token(); err != nil || begin != json.Delim('[') {
		return errors.New("the descriptors are not a list")
	}
	for list.More() {
		if len(*d) == MaxDescriptors {
			return fmt.Errorf("%w: more than %d", ErrDescriptors, MaxDescriptors)
		}
		var one ocispec.Descriptor
		if err := list.Decode(&one); err != nil {
			return err
		}
		*d = append(*d, one)
	}
	return nil
}

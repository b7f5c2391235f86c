package mirror

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzAsked checks that a name which requestedName finds in an arbitrary request of a client is a
// valid image name or digest.
func FuzzAsked(f *testing.F) {
	f.Add("/v2/library/nginx/manifests/1", "ns=docker.io")
	f.Add("/v2/blobs/manifests/blobs/sha256:00", "")
	f.Add("/v2/blobs/manifests//sha256/blobs/sha256:00", "")
	f.Add("/v2/nginx/manifests/1", "ns=/docker.io")
	f.Fuzz(func(t *testing.T, path, query string) {
		r := &http.Request{URL: &url.URL{Path: path, RawQuery: query}}
		if name, ok := requestedName(r); ok {
			if _, err := reference.Parse(name); err == nil {
				return
			}
			if _, err := digest.Parse(name); err != nil {
				t.Errorf("%q %q: %q is neither an image nor a digest", path, query, name)
			}
		}
	})
}

// FuzzContent checks that checkContent accepts a manifest from a mirror only if the manifest has
// schema version 2 and the media type of the answer, or none.
func FuzzContent(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2}`), ocispec.MediaTypeImageManifest)
	f.Add([]byte(`{"schemaVersion":2,"mediaType":"x"}`), "x")
	f.Add([]byte(`{"schemaVersion":2e0,"mediaType":null}`), "")
	f.Add([]byte("[[[["), "")
	f.Fuzz(func(t *testing.T, content []byte, mediaType string) {
		if checkContent(content, mediaType) != nil {
			return
		}
		var m ocispec.Index
		if err := json.Unmarshal(content, &m); err == nil && (m.SchemaVersion != 2 || m.MediaType != "" && m.MediaType != mediaType) {
			t.Errorf("accepted with the media type %q: %+v", mediaType, m)
		}
	})
}

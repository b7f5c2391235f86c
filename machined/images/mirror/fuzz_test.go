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

// FuzzAsked parses arbitrary requests of a client: each name found is a valid image or digest.
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

// FuzzContent checks arbitrary answers of a mirror: an accepted manifest has the announced type.
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
			t.Errorf("taken as %q: %+v", mediaType, m)
		}
	})
}

package mirror

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
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

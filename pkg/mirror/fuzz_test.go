package mirror

import (
	"net/http"
	"net/url"
	"testing"
)

// FuzzAsked parses arbitrary requests of a client.
func FuzzAsked(f *testing.F) {
	f.Add("/v2/library/nginx/manifests/1", "ns=docker.io")
	f.Add("/v2/blobs/manifests/blobs/sha256:00", "")
	f.Fuzz(func(t *testing.T, path, query string) {
		r := &http.Request{URL: &url.URL{Path: path, RawQuery: query}}
		if name, ok := requestedName(r); ok && (name == "" || name[0] == '/') {
			t.Errorf("%q %q: %q", path, query, name)
		}
	})
}

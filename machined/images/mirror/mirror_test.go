package mirror

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// shelf is a source of images in memory.
type shelf struct {
	names map[string]string // contents by name
	blobs map[string]string // contents by digest
	fails error             // error while a blob is read
}

func (s shelf) Find(_ context.Context, name string) (ocispec.Descriptor, error) {
	content, ok := s.names[name]
	if !ok {
		content, ok = s.blobs[name]
	}
	if !ok {
		return ocispec.Descriptor{}, fs.ErrNotExist
	}
	return ocispec.Descriptor{MediaType: "application/vnd.test", Digest: digest.FromString(content), Size: int64(len(content))}, nil
}

func (s shelf) Open(_ context.Context, digest string) (io.ReadCloser, error) {
	content, ok := s.blobs[digest]
	if !ok {
		return nil, fs.ErrNotExist
	}
	if s.fails != nil {
		return io.NopCloser(io.MultiReader(strings.NewReader(content[:1]), iotest.ErrReader(s.fails))), nil
	}
	return io.NopCloser(strings.NewReader(content)), nil
}

// TestPull sends requests as containerd does, and invalid requests, and checks the answers. A
// request without the correct token is rejected.
func TestPull(t *testing.T) {
	manifest, layer := `{"a":"manifest"}`, "a layer"
	s := shelf{
		names: map[string]string{"docker.io/library/web:1": manifest, "10.0.0.9:5000/a/manifests/b:2": layer, "gone.example.com/web:1": "gone"},
		blobs: map[string]string{digest.FromString(manifest).String(): manifest, digest.FromString(layer).String(): layer},
	}
	h := Handler(s, "word")
	for _, c := range []struct {
		method, url string
		status      int
		body        string
	}{
		{"GET", "/v2/", 200, ""},
		{"HEAD", "/v2/library/web/manifests/1?ns=docker.io", 200, ""},
		{"GET", "/v2/library/web/manifests/1?ns=docker.io", 200, manifest},
		{"GET", "/v2/library/web/manifests/" + digest.FromString(manifest).String() + "?ns=docker.io", 200, manifest},
		{"GET", "/v2/library/web/blobs/" + digest.FromString(layer).String() + "?ns=docker.io", 200, layer},
		{"GET", "/v2/a/manifests/b/manifests/2?ns=10.0.0.9:5000", 200, layer},
		{"GET", "/v2/a/manifests/b/blobs/" + digest.FromString(layer).String() + "?ns=10.0.0.9:5000", 200, layer},
		{"GET", "/v2/library/web/manifests/2?ns=docker.io", 404, ""},
		{"GET", "/v2/library/web/manifests/1", 404, ""}, // without a registry
		{"GET", "/v2/library/web/manifests/?ns=docker.io", 404, ""},
		{"GET", "/v2/library/web/blobs/1?ns=docker.io", 404, ""},
		{"GET", "/v2/library/web/tags/list?ns=docker.io", 404, ""},
		{"GET", "/v2/manifests/1?ns=docker.io", 404, ""},
		{"GET", "/v2/web/manifests/1?ns=gone.example.com", 502, ""},
		{"POST", "/v2/library/web/blobs/uploads/", 405, ""},
		{"GET", "/", 404, ""},
	} {
		r := httptest.NewRequest(c.method, c.url, nil)
		r.Header.Set("Authorization", "Bearer word")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || c.body != "" && w.Body.String() != c.body {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.url, w.Code, w.Body, c.status, c.body)
		}
		if c.method == "HEAD" && (w.Header().Get("Docker-Content-Digest") != digest.FromString(manifest).String() || w.Header().Get("Content-Length") != "16" ||
			w.Header().Get("Content-Type") != "application/vnd.test" || w.Body.Len() > 0) {
			t.Errorf("%s: %v %q", c.url, w.Header(), w.Body)
		}
	}
	for _, shown := range []string{"", "Bearer ", "Bearer wor", "Bearer words", "word", "Basic word"} {
		r := httptest.NewRequest("GET", "/v2/library/web/manifests/1?ns=docker.io", nil)
		r.Header.Set("Authorization", shown)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "manifest") {
			t.Errorf("with the header Authorization %q: %d %q", shown, w.Code, w.Body)
		}
	}
}

// TestBrokenOff checks that a client gets an error if the source fails within a blob, and does not
// accept the first part as the complete blob.
func TestBrokenOff(t *testing.T) {
	sum := digest.FromString("a layer").String()
	server := httptest.NewServer(Handler(shelf{blobs: map[string]string{sum: "a layer"}, fails: errors.New("the other machine is gone")}, "word"))
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/v2/web/blobs/"+sum, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer word")
	answer, err := http.DefaultClient.Do(r)
	if err == nil {
		defer answer.Body.Close()
		_, err = io.ReadAll(answer.Body)
	}
	if err == nil {
		t.Error("half a layer was read without an error")
	}
}

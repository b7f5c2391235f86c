// Package mirror serves the images of a Source as a pull-only registry (OCI distribution-spec v1.1,
// "Pull"). It has no names of its own: a client requests the images of other registries, and names
// the registry in the parameter ns, by containerd's rule for mirrors (containerd's docs/hosts.md).
package mirror

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/orlop-os/orlop/pkg/loopback"
)

// Source provides the images.
type Source interface {
	// Find returns the descriptor for a name with registry and tag ("docker.io/library/nginx:1"),
	// or for a digest ("sha256:…"). The handler answers 404 for every error.
	Find(ctx context.Context, name string) (ocispec.Descriptor, error)
	// Open reads a blob by its digest.
	Open(ctx context.Context, digest string) (io.ReadCloser, error)
}

// Handler serves images to clients with the token (RFC 6750). Other clients get 403, not 401, which
// would make them ask for a password.
func Handler(from Source, token string) http.Handler {
	expected := []byte("Bearer " + token)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/", func(w http.ResponseWriter, r *http.Request) { // also matches HEAD
		if name, ok := requestedName(r); ok {
			serve(w, r, from, name)
		} else if r.URL.Path != "/v2/" {
			http.NotFound(w, r)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loopback.Authorized(w, r, r.Header.Get("Authorization"), expected) {
			mux.ServeHTTP(w, r)
		}
	})
}

// requestedName returns the name in a request in the form of Source; ok is false if the path has
// another form, or names no valid image. The paths are /v2/REPOSITORY/manifests/TAG-OR-DIGEST and
// /v2/REPOSITORY/blobs/DIGEST.
func requestedName(r *http.Request) (name string, ok bool) {
	path := strings.TrimPrefix(r.URL.Path, "/v2/")
	kind, at := "/manifests/", strings.LastIndex(path, "/manifests/")
	if blob := strings.LastIndex(path, "/blobs/"); blob > at { // a repository may contain this word
		kind, at = "/blobs/", blob
	}
	if at <= 0 {
		return "", false
	}
	repository, target := path[:at], path[at+len(kind):]
	if d, err := digest.Parse(target); err == nil {
		return d.String(), true // the digest names the blob in every repository
	}
	if kind == "/blobs/" {
		return "", false
	}
	named, err := reference.Parse(r.URL.Query().Get("ns") + "/" + repository + ":" + target)
	if err != nil {
		return "", false
	}
	return named.String(), true
}

// serve sends the object with a name.
func serve(w http.ResponseWriter, r *http.Request, from Source, name string) {
	found, err := from.Find(r.Context(), name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	head := func() {
		w.Header().Set("Docker-Content-Digest", found.Digest.String())
		w.Header().Set("Content-Length", strconv.FormatInt(found.Size, 10))
		w.Header().Set("Content-Type", "application/octet-stream")
		if found.MediaType != "" {
			w.Header().Set("Content-Type", found.MediaType)
		}
	}
	if r.Method == http.MethodHead {
		head()
		return
	}
	blob, err := from.Open(r.Context(), found.Digest.String())
	if err != nil {
		http.Error(w, fmt.Sprintf("%s: cannot read: %v", name, err), http.StatusBadGateway)
		return
	}
	defer blob.Close()
	head()
	if _, err := io.Copy(w, blob); err != nil {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

// Package mirror serves container images that are somewhere else, as a registry from which can only
// be pulled (OCI distribution-spec v1.1, "Pull"). It has no names of its own: a client asks it for
// the images of other registries, and says of which one in the parameter ns, as containerd does
// when it asks a mirror (its docs/hosts.md).
package mirror

import (
	"context"
	"crypto/subtle"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Source is where the images are.
type Source interface {
	// Find returns what a name stands for, with registry and tag ("docker.io/library/nginx:1"), or
	// a digest ("sha256:…"). Any error is taken for "not here".
	Find(ctx context.Context, name string) (ocispec.Descriptor, error)
	// Open reads a blob by its digest.
	Open(ctx context.Context, digest string) (io.ReadCloser, error)
}

// Handler serves images to whoever shows a token (RFC 6750); everybody else gets 403, which asks
// for no password.
func Handler(from Source, token string) http.Handler {
	shows := []byte("Bearer " + token)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/", func(w http.ResponseWriter, r *http.Request) { // HEAD, too
		if name, ok := asked(r); ok {
			serve(w, r, from, name)
		} else if r.URL.Path != "/v2/" {
			http.NotFound(w, r)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if authorized(w, r, r.Header.Get("Authorization"), shows) {
			mux.ServeHTTP(w, r)
		}
	})
}

// authorized checks the token that a request shows, and counts its connection as one of the
// container runtime's. It answers, and closes the connection, if the token is another one (403) or
// too many connections are open (503).
func authorized(w http.ResponseWriter, r *http.Request, shown string, token []byte) bool {
	status, why := http.StatusOK, ""
	switch {
	case subtle.ConstantTimeCompare([]byte(shown), token) != 1:
		status, why = http.StatusForbidden, "this registry is for the machine's container runtime alone"
	case !proved(r.Context()):
		status, why = http.StatusServiceUnavailable, "too many connections are open"
	default:
		return true
	}
	w.Header().Set("Connection", "close")
	http.Error(w, why, status)
	return false
}

// asked returns what a request is for, as Source has it: /v2/REPOSITORY/manifests/TAG-OR-DIGEST, or
// /v2/REPOSITORY/blobs/DIGEST.
func asked(r *http.Request) (name string, ok bool) {
	path := strings.TrimPrefix(r.URL.Path, "/v2/")
	kind, at := "/manifests/", strings.LastIndex(path, "/manifests/")
	if blob := strings.LastIndex(path, "/blobs/"); blob > at { // a repository may be called so, too
		kind, at = "/blobs/", blob
	}
	if at <= 0 {
		return "", false
	}
	repository, reference := path[:at], path[at+len(kind):]
	if strings.Contains(reference, ":") {
		return reference, true // a digest: a tag has no colon
	}
	registry := r.URL.Query().Get("ns")
	return registry + "/" + repository + ":" + reference, kind == "/manifests/" && registry != "" && reference != ""
}

// serve sends what a name stands for.
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
		panic(http.ErrAbortHandler) // whoever reads is not to take the part for the whole
	}
}

package integration

import (
	"context"
	"crypto/subtle"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"time"

	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/rogpeppe/go-internal/testscript"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/orlop-os/orlop/test/testimage"
)

// registryWith returns a registry with the content that the function push has stored under the
// reference, which has the form NAME:TAG.
func registryWith(ts *testscript.TestScript, reference string, push func(context.Context, *remote.Repository)) http.Handler {
	handler := containerregistry.New(containerregistry.Logger(log.New(io.Discard, "", 0)))
	direct := httptest.NewServer(handler)
	defer direct.Close()
	repository, err := remote.NewRepository(strings.TrimPrefix(direct.URL, "http://") + "/" + reference)
	ts.Check(err)
	repository.PlainHTTP = true
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	push(ctx, repository)
	return handler
}

// mirrorVerb starts a mirror of a registry. The mirror uses TLS and serves a single user. The patch
// lists two mirrors. The first accepts connections and never answers. The second is this mirror.
func (s *story) mirrorVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "mirror PATCH NAME")
	const namespace, username, password = "outside", "machines", "let me in"
	of, image, _ := strings.Cut(args[1], "/")
	handler := registryWith(ts, namespace+"/"+image, func(ctx context.Context, repository *remote.Repository) {
		archive := ts.MkAbs("mirror.tar")
		ts.Check(testimage.Write(ctx, archive, args[1]))
		store, err := oci.NewFromTar(ctx, archive)
		ts.Check(err)
		_, err = oras.Copy(ctx, store, args[1], repository, repository.Reference.Reference, oras.DefaultCopyOptions)
		ts.Check(err)
	})
	host, err := s.network.NewHost("mirror", netip.Addr{})
	ts.Check(err)
	ca, err := serveTLS(host, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, word, given := r.BasicAuth()
		if !given || user != username || subtle.ConstantTimeCompare([]byte(word), []byte(password)) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="mirror"`)
			http.Error(w, "user or password is missing or wrong", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	ts.Check(err)
	hung, err := s.network.NewHost("hung", netip.Addr{})
	ts.Check(err)
	_, err = hung.Listen(443)
	ts.Check(err)
	writeRegistries(ts, args[0],
		map[string]any{"address": hung.Addr().String(), "mirrors": []string{of}},
		map[string]any{"address": host.Addr().String() + "/" + namespace, "mirrors": []string{of}, "ca": string(ca), "username": username, "password": password},
	)
	s.note("the mirror %s has %s", host.Addr(), args[1])
}

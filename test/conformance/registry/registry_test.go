package main

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/orlop-os/orlop/imager/ociarchive"
)

// TestServe checks that a client can pull an image by its name without the registry, and that a
// push is rejected.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	if err := ociarchive.WriteLayout(dir, ociarchive.Program("registry.example.com/team/kitten:1.7", "kitten", []byte("miaow"))); err != nil {
		t.Fatal(err)
	}
	handler, err := serve(dir)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	repository, err := remote.NewRepository(strings.TrimPrefix(server.URL, "http://") + "/team/kitten")
	if err != nil {
		t.Fatal(err)
	}
	repository.PlainHTTP = true
	if _, err := oras.Copy(t.Context(), repository, "1.7", memory.New(), "1.7", oras.DefaultCopyOptions); err != nil {
		t.Errorf("the image cannot be pulled: %v", err)
	}
	if _, err := oras.PushBytes(t.Context(), repository, "text/plain", []byte("more")); err == nil {
		t.Error("the registry accepts a push")
	}
	if _, err := repository.Resolve(t.Context(), "1.8"); !errors.Is(err, errdef.ErrNotFound) {
		t.Errorf("Resolve of a version that does not exist returns %v, want not found", err)
	}
}

// Command registry serves the images of an OCI layout over plain HTTP, read-only. The machines
// under test use it, because some tests pull an image although the machine has it.
package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("arguments: cannot use %q: expected the directory of a layout, and an address to listen on", args)
	}
	handler, err := serve(args[0])
	if err != nil {
		return err
	}
	server := &http.Server{Addr: args[1], Handler: handler, ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}

// serve returns a handler for the images of the layout in dir. It removes the registry from the
// names of the images.
func serve(dir string) (http.Handler, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	blobs := filepath.Join(dir, ocispec.ImageBlobsDir)
	registry := containerregistry.New(containerregistry.WithBlobHandler(containerregistry.NewDiskBlobHandler(blobs)))
	for _, m := range list.Manifests {
		name := m.Annotations[ocispec.AnnotationRefName]
		_, path, _ := strings.Cut(name, "/")
		repository, tag := path[:max(0, strings.LastIndexByte(path, ':'))], path[strings.LastIndexByte(path, ':')+1:]
		content, err := os.ReadFile(filepath.Join(blobs, m.Digest.Algorithm, m.Digest.Hex))
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		push := httptest.NewRequest(http.MethodPut, "/v2/"+repository+"/manifests/"+tag, bytes.NewReader(content))
		push.Header.Set("Content-Type", string(m.MediaType))
		answer := httptest.NewRecorder()
		if registry.ServeHTTP(answer, push); answer.Code != http.StatusCreated {
			return nil, fmt.Errorf("image %s: cannot store: %d %s", name, answer.Code, answer.Body)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "the registry is read-only", http.StatusMethodNotAllowed)
			return
		}
		registry.ServeHTTP(w, r)
	}), nil
}

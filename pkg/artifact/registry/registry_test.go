package registry

import (
	"bytes"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/transfer"
)

const kind = "application/vnd.example.file.v1"

// served starts a registry with an artifact that has these layers. It returns the address of a
// server that calls the registry through the handler of front.
func served(t *testing.T, front func(http.Handler) http.Handler, layers ...[]byte) (address string) {
	t.Helper()
	handler := containerregistry.New()
	direct := httptest.NewServer(handler)
	t.Cleanup(direct.Close)
	repository, err := remote.NewRepository(strings.TrimPrefix(direct.URL, "http://") + "/example/file")
	if err != nil {
		t.Fatal(err)
	}
	repository.PlainHTTP = true
	var all []ocispec.Descriptor
	for _, content := range layers {
		layer := ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(content), Size: int64(len(content))}
		if err := repository.Push(t.Context(), layer, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		all = append(all, layer)
	}
	manifest, err := oras.PackManifest(t.Context(), repository, oras.PackManifestVersion1_1, "application/vnd.example", oras.PackManifestOptions{Layers: all})
	if err != nil {
		t.Fatal(err)
	}
	if err := repository.Tag(t.Context(), manifest, "1"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(front(handler))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func nothing(h http.Handler) http.Handler { return h }

// cutting answers each request for a blob with at most `most` bytes, and then breaks the
// connection. It adds the header Range of each of these requests to *asked. If ranges is true, it
// announces that the registry supports range requests.
func cutting(most int, ranges bool, asked *[]string) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				h.ServeHTTP(w, r)
				return
			}
			*asked = append(*asked, r.Header.Get("Range"))
			if ranges {
				w.Header().Set("Accept-Ranges", "bytes")
			}
			h.ServeHTTP(&short{w, most}, r)
		})
	}
}

type short struct {
	http.ResponseWriter
	left int
}

func (s *short) Write(p []byte) (int, error) {
	if len(p) > s.left {
		s.ResponseWriter.Write(p[:s.left])
		panic(http.ErrAbortHandler)
	}
	s.left -= len(p)
	return s.ResponseWriter.Write(p)
}

// TestReader: a file is read completely from any offset, even if connections break or the registry
// supports no range requests.
func TestReader(t *testing.T) {
	content := make([]byte, 300_000)
	rand.Read(content)
	var asked []string
	for what, front := range map[string]func(http.Handler) http.Handler{
		"plain": nothing, "ranges that break": cutting(100_000, true, &asked), "ranges": cutting(1<<20, true, &asked),
	} {
		s := Source{Reference: served(t, front, content) + "/example/file:1", PlainHTTP: true}
		f, err := s.Find(t.Context(), kind)
		if err != nil || f.Size() != int64(len(content)) || len(f.SHA256()) != 64 {
			t.Fatalf("%s: %+v, %v", what, f, err)
		}
		for _, at := range []int{0, 1, 299_999, 300_000} {
			got, err := io.ReadAll(f.Reader(t.Context(), int64(at)))
			if err != nil || !bytes.Equal(got, content[at:]) {
				t.Errorf("%s: from %d: %d bytes, %v", what, at, len(got), err)
			}
		}
	}
	if !strings.Contains(strings.Join(asked, " "), "bytes=299999-299999") {
		t.Errorf("requested ranges %q: no request for only the last byte, so some bytes were read twice", asked)
	}
}

// TestReaderGivesUp: the reader stops when a connection delivers no further byte.
func TestReaderGivesUp(t *testing.T) {
	var asked []string
	s := Source{Reference: served(t, cutting(0, true, &asked), make([]byte, 1000)) + "/example/file:1", PlainHTTP: true}
	f, err := s.Find(t.Context(), kind)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(f.Reader(t.Context(), 0)); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) || len(asked) > 2 {
		t.Errorf("%v, after %d requests", err, len(asked))
	}
}

// TestSlow: a registry that stops within a manifest or a layer does not block the reader for ever.
func TestSlow(t *testing.T) {
	for _, part := range []string{"/manifests/", "/blobs/"} {
		release := make(chan struct{})
		front := func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.URL.Path, part) || r.Method != http.MethodGet {
					h.ServeHTTP(w, r)
					return
				}
				recorded := httptest.NewRecorder()
				h.ServeHTTP(recorded, r)
				for name, values := range recorded.Header() {
					w.Header()[name] = values
				}
				w.Write(recorded.Body.Bytes()[:1])
				w.(http.Flusher).Flush()
				select {
				case <-release:
				case <-r.Context().Done():
				}
			})
		}
		s := Source{Reference: served(t, front, make([]byte, 1000)) + "/example/file:1", PlainHTTP: true}
		if part == "/manifests/" {
			shorten(t)
		}
		f, err := s.Find(t.Context(), kind)
		if err == nil {
			shorten(t)
			_, err = io.ReadAll(f.Reader(t.Context(), 0))
		}
		close(release)
		if err == nil || !strings.Contains(err.Error(), "is too slow: no data for 100ms") {
			t.Errorf("%s: %v", part, err)
		}
	}
}

// shorten sets the timeout for data to 100 ms, until the end of the test.
func shorten(t *testing.T) {
	before := pace
	pace = transfer.Pace{Stall: 100 * time.Millisecond, Window: time.Hour}
	t.Cleanup(func() { pace = before })
}

// TestAccess: the client trusts only the configured CA, and sends the configured name and password.
func TestAccess(t *testing.T) {
	inner := httptest.NewTLSServer(nil)
	t.Cleanup(inner.Close)
	address := served(t, func(h http.Handler) http.Handler {
		inner.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if name, word, _ := r.BasicAuth(); name != "dora" || word != "secret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
		return h
	}, []byte("content"))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: inner.Certificate().Raw})
	reference := strings.TrimPrefix(inner.URL, "https://") + "/example/file:1"
	good := Source{Reference: reference, CA: ca, Username: "dora", Password: "secret"}
	f, err := good.Find(t.Context(), kind)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f.Reader(t.Context(), 0)); err != nil || string(got) != "content" {
		t.Errorf("%q, %v", got, err)
	}
	for what, c := range map[string]struct {
		s    Source
		kind string
		want string
	}{
		"no credentials":          {Source{Reference: reference, CA: ca}, kind, "credential"},
		"a wrong password":        {Source{Reference: reference, CA: ca, Username: "dora", Password: "x"}, kind, "401"},
		"a password without TLS":  {Source{Reference: reference, PlainHTTP: true, Username: "dora", Password: "secret"}, kind, "without TLS"},
		"no CA":                   {Source{Reference: reference}, kind, "no CA is given"},
		"HTTP to an HTTPS server": {Source{Reference: reference, PlainHTTP: true}, kind, "400"},
		"no reference":            {Source{Reference: "nonsense", PlainHTTP: true}, kind, "invalid reference"},
		"no such tag":             {Source{Reference: address + "/example/file:2", PlainHTTP: true}, kind, "not found"},
		"no layer of this type":   {Source{Reference: address + "/example/file:1", PlainHTTP: true}, "other/type", "0 layers of type other/type"},
		"two layers of this type": {Source{Reference: served(t, nothing, []byte("a"), []byte("b")) + "/example/file:1", PlainHTTP: true}, kind,
			"2 layers of type " + kind},
	} {
		if _, err := c.s.Find(t.Context(), c.kind); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// TestTokenWithoutTLS: the client does not send the password to a token server without TLS.
func TestTokenWithoutTLS(t *testing.T) {
	asked := false
	tokens := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer tokens.Close()
	registry := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+tokens.URL+`/token",service="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer registry.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: registry.Certificate().Raw})
	s := Source{Reference: strings.TrimPrefix(registry.URL, "https://") + "/example/file:1", CA: ca, Username: "dora", Password: "secret"}
	if _, err := s.Find(t.Context(), kind); err == nil || !strings.Contains(err.Error(), "uses http but registry was contacted over https") || asked {
		t.Errorf("the token server without TLS got a request: %t; error %v", asked, err)
	}
}

// TestCompression: the client requests content without compression, even from a registry that can
// compress.
func TestCompression(t *testing.T) {
	address := served(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				t.Errorf("the client requests %s in gzip", r.URL.Path)
			}
			h.ServeHTTP(w, r)
		})
	}, []byte("content"))
	f, err := Source{Reference: address + "/example/file:1", PlainHTTP: true}.Find(t.Context(), kind)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f.Reader(t.Context(), 0)); err != nil || string(got) != "content" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestArtifact: an artifact is fetched by its digest, and a missing artifact is reported as
// fs.ErrNotExist.
func TestArtifact(t *testing.T) {
	address := served(t, nothing, []byte("a: 1"), []byte("b: 1"))
	repository, err := remote.NewRepository(address + "/example/file:1")
	if err != nil {
		t.Fatal(err)
	}
	repository.PlainHTTP = true
	manifest, err := repository.Resolve(t.Context(), "1")
	if err != nil {
		t.Fatal(err)
	}
	sum := manifest.Digest.Encoded()
	from, err := Source{Reference: address + "/example/file@" + manifest.Digest.String(), PlainHTTP: true}.Artifact()
	if err != nil {
		t.Fatal(err)
	}
	store := artifact.Store{Dir: t.TempDir(), Group: os.Getgid()}
	if err := store.Fetch(t.Context(), sum, from); err != nil {
		t.Fatal(err)
	}
	if texts, err := store.Texts(sum); err != nil || len(texts) != 2 || texts[0].Content+texts[1].Content != "a: 1b: 1" {
		t.Errorf("%v, %v", texts, err)
	}
	other := digest.FromString("other").Encoded()
	for what, b := range map[string]artifact.Blob{"manifest": {SHA256: other, Size: -1}, "layer": {SHA256: other, Size: 5}} {
		if _, err := from.Open(t.Context(), b); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), address) {
			t.Errorf("error for a missing %s: %v", what, err)
		}
	}
	if _, err := (Source{Reference: address + "/example/file@" + manifest.Digest.String()}).Artifact(); err == nil || !strings.Contains(err.Error(), "no CA") {
		t.Errorf("Artifact without a CA: %v", err)
	}
}

// FuzzManifest: for every answer of a registry, the result is an error or a layer with a digest and
// a size.
func FuzzManifest(f *testing.F) {
	good := digest.FromString("x").String()
	for _, size := range []int{1, 0, -1} {
		f.Add(fmt.Appendf(nil, `{"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`, kind, good, size))
	}
	f.Add([]byte(`{"layers":[null,{"mediaType":"` + kind + `","digest":"sha512:00"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		layer, err := layerOf(text, kind)
		if err == nil && (layer.Size <= 0 || len(layer.Digest.Encoded()) != 64 || layer.MediaType != kind) {
			t.Errorf("accepted: %+v", layer)
		}
	})
}

package mirror

import (
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/orlop-os/orlop/pkg/transfer"
)

// The limits for tests. The field pause, the time for which a failed mirror is skipped, is longer
// than a test.
var (
	// quick are the limits for servers that do not answer.
	quick = limits{answer: 300 * time.Millisecond, pace: transfer.Pace{Stall: 300 * time.Millisecond, Window: time.Hour}, pause: time.Hour}
	// patient are the limits for servers that answer, possibly late on a busy computer.
	patient = limits{answer: time.Hour, pace: transfer.Pace{Stall: time.Hour, Window: time.Hour}, pause: time.Hour}
)

// oneUpstream is a set of upstreams with a single upstream, m.
type oneUpstream struct{ up Upstream }

func (o oneUpstream) Upstream(path string) (Upstream, bool) {
	return o.up, strings.HasPrefix(path, "m/v2/")
}

// front is the tested proxy in front of a mirror. It records the failures that the proxy reports.
type front struct {
	*httptest.Server
	t    *testing.T
	mu   sync.Mutex
	told []string
}

// newFront returns the proxy in front of a mirror at an address.
func newFront(t *testing.T, address string, l limits) *front {
	t.Helper()
	f := &front{t: t}
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	up := Upstream{Name: "mirror.example.com", URL: *at, Client: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
	f.Server = httptest.NewServer(newProxy(oneUpstream{up}, "word", func(name string, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.told = append(f.told, name+" "+err.Error())
	}, l))
	t.Cleanup(f.Close)
	return f
}

func (f *front) reasons() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.told, "; ")
}

// ask sends a request to the proxy and returns the response and its content. The content is "cut
// off" if it ends with an error, and an error text if there is no response.
func (f *front) ask(method, path string, headers ...string) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.URL+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set(ProxyHeader, "word")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := f.Client().Do(r)
	if err != nil {
		return &http.Response{}, err.Error()
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return response, "cut off"
	}
	return response, string(content)
}

// silent returns the address of a listener that accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// TestThrough checks that the proxy forwards requests of clients and answers of the mirror
// unchanged, and follows redirects. It rejects requests for other paths or servers, other methods,
// and clients without the token.
func TestThrough(t *testing.T) {
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get(ProxyHeader) != "":
			http.Error(w, "the machine's own token", http.StatusTeapot)
		case r.URL.Path == "/v2/private/manifests/1" && r.Header.Get("Authorization") == "":
			w.Header().Set("WWW-Authenticate", `Bearer realm="https://tokens.example.com"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasPrefix(r.URL.Path, "/v2/missing"):
			http.NotFound(w, r)
		case strings.HasPrefix(r.URL.Path, "/v2/moved"):
			http.Redirect(w, r, "/elsewhere?from=moved", http.StatusTemporaryRedirect)
		default:
			w.Header().Set("Docker-Content-Digest", "sha256:d")
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			echo := fmt.Sprint(r.Method, " ", r.URL.RequestURI(), " ", r.Header.Get("Range"), r.Header.Get("Accept"), r.Header.Get("Authorization"))
			if strings.Contains(r.URL.Path, "/manifests/") {
				echo = fmt.Sprintf(`{"schemaVersion":2,"annotations":{"echo":%q}}`, echo)
			}
			fmt.Fprint(w, echo)
		}
	}))
	defer registry.Close()
	f := newFront(t, registry.URL, patient)
	for _, c := range []struct {
		method, path string
		headers      []string
		status       int
		content      string
	}{
		{"GET", "/through/m/v2/outside/web/manifests/1?ns=docker.io", []string{"Accept", "a"}, 200, `{"schemaVersion":2,"annotations":{"echo":"GET /v2/outside/web/manifests/1?ns=docker.io a"}}`},
		{"GET", "/through/m/v2/web/blobs/sha256:b", []string{"Range", "bytes=3-"}, 200, "GET /v2/web/blobs/sha256:b bytes=3-"},
		{"HEAD", "/through/m/v2/web/manifests/1", nil, 200, ""},
		{"GET", "/through/m/v2/private/manifests/1", nil, 401, ""},
		{"GET", "/through/m/v2/private/manifests/1", []string{"Authorization", "Basic b"}, 200, `{"schemaVersion":2,"annotations":{"echo":"GET /v2/private/manifests/1 Basic b"}}`},
		{"GET", "/through/m/v2/moved/blobs/sha256:b", nil, 200, "GET /elsewhere?from=moved "},
		{"GET", "/through/m/v2/missing/manifests/1", nil, 404, "404 page not found\n"},
		{"GET", "/through/other/v2/web/manifests/1", nil, 404, "404 page not found\n"},
		{"GET", "/through/m/v2/../admin", nil, 404, "404 page not found\n"},
		{"GET", "/through/m/v2/web/..", nil, 404, "404 page not found\n"},
		{"POST", "/through/m/v2/web/blobs/uploads/", nil, 405, "this registry accepts only pulls\n"},
		{"GET", "/through/m/v2/web/manifests/1", []string{ProxyHeader, "other"}, 403, "this server is for programs of the machine alone\n"},
	} {
		response, content := f.ask(c.method, c.path, c.headers...)
		if response.StatusCode != c.status || content != c.content {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, response.StatusCode, content, c.status, c.content)
		}
	}
	if response, _ := f.ask("HEAD", "/through/m/v2/web/manifests/1"); response.Header.Get("Docker-Content-Digest") != "sha256:d" || response.ContentLength <= 0 {
		t.Errorf("the header is %v, %d bytes", response.Header, response.ContentLength)
	}
	if response, _ := f.ask("GET", "/through/m/v2/private/manifests/1"); response.Header.Get("WWW-Authenticate") == "" {
		t.Error("the answer 401 has no WWW-Authenticate, so a client without credentials cannot find the token server")
	}
	if got := f.reasons(); got != "" {
		t.Errorf("failures: %s", got)
	}
}

// TestSilent checks a mirror that does not answer: the first request fails after the timeout, and
// the next requests fail immediately.
func TestSilent(t *testing.T) {
	f := newFront(t, "http://"+silent(t), quick)
	for range 20 {
		response, content := f.ask("GET", "/through/m/v2/web/manifests/1")
		if response.StatusCode != http.StatusBadGateway || !strings.Contains(content, "mirror.example.com") || !strings.Contains(content, "did not answer") && !strings.Contains(content, "does not answer") {
			t.Fatalf("%d %q", response.StatusCode, content)
		}
	}
	if got := f.reasons(); got != "mirror.example.com does not answer for 300ms" {
		t.Errorf("the reported failures are %q", got)
	}
	if d := defaultLimits.answer; d != 5*time.Second {
		t.Errorf("the timeout is %s, but the reference of the configuration says 5 s", d)
	}
}

// TestSilentTLS checks that the timeout also applies to a mirror that accepts connections but does
// not answer the TLS handshake.
func TestSilentTLS(t *testing.T) {
	f := newFront(t, "https://"+silent(t), quick)
	if response, content := f.ask("HEAD", "/through/m/v2/web/manifests/1"); response.StatusCode != http.StatusBadGateway {
		t.Errorf("%d %q", response.StatusCode, content)
	}
	if got := f.reasons(); !strings.Contains(got, "does not answer") {
		t.Errorf("the reported failures are %q", got)
	}
}

// TestGone checks a mirror that accepts no connections: the failure is reported once, and each
// request tries to connect to the mirror again.
func TestGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	f := newFront(t, "http://"+address, patient)
	for range 2 {
		if response, content := f.ask("GET", "/through/m/v2/web/manifests/1"); response.StatusCode != http.StatusBadGateway || !strings.Contains(content, "connection refused") {
			t.Errorf("%d %q", response.StatusCode, content)
		}
	}
	if got := f.reasons(); strings.Count(got, "refused") != 1 {
		t.Errorf("the reported failures are %q", got)
	}
}

// TestSlow checks a mirror that answers a request too late, for example because it has to fetch the
// image itself. The proxy then skips the mirror, and uses it again as soon as it answers a probe.
func TestSlow(t *testing.T) {
	release := make(chan struct{})
	var probes atomic.Int32
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v2/":
			probes.Add(1)
		case "/v2/slow/manifests/1":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		default:
			fmt.Fprint(w, "quick")
		}
	}))
	defer registry.Close()
	defer close(release)
	f := newFront(t, registry.URL, quick)
	if response, _ := f.ask("GET", "/through/m/v2/slow/manifests/1"); response.StatusCode != http.StatusBadGateway {
		t.Fatalf("%d", response.StatusCode)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		response, content := f.ask("GET", "/through/m/v2/other/tags/list")
		if response.StatusCode == 200 && content == "quick" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d %q after %d probes", response.StatusCode, content, probes.Load())
		}
	}
}

// TestStalled checks a mirror that stops sending within a file. After the timeout, the client gets
// an error instead of a shorter file, and the proxy skips the mirror.
func TestStalled(t *testing.T) {
	release := make(chan struct{})
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			<-release
			return
		}
		fmt.Fprint(w, "a part")
		w.(http.Flusher).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer registry.Close()
	defer close(release)
	f := newFront(t, registry.URL, limits{answer: patient.answer, pace: quick.pace, pause: quick.pause})
	if _, content := f.ask("GET", "/through/m/v2/web/blobs/sha256:b"); content != "cut off" {
		t.Errorf("the client accepts %q as the complete file", content)
	}
	if got := f.reasons(); !strings.Contains(got, "does not answer within a file") {
		t.Errorf("the reported failures are %q", got)
	}
	if response, _ := f.ask("GET", "/through/m/v2/web/blobs/sha256:b"); response.StatusCode != http.StatusBadGateway {
		t.Errorf("the proxy does not skip the mirror: status %d", response.StatusCode)
	}
}

// TestPage checks that the proxy rejects an answer that is a web page, for example the sign-in page
// of a network.
func TestPage(t *testing.T) {
	kind := ""
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		fmt.Fprint(w, "<html>Sign in")
	}))
	defer registry.Close()
	for _, c := range []struct {
		kind   string
		status int
	}{
		{"text/html", 502}, {"text/html; charset=utf-8", 502}, {"TEXT/HTML", 502}, {"application/xhtml+xml", 502},
	} {
		kind = c.kind
		f := newFront(t, registry.URL, patient)
		for _, method := range []string{"HEAD", "GET"} {
			if response, _ := f.ask(method, "/through/m/v2/web/manifests/1"); response.StatusCode != c.status {
				t.Errorf("%s %s: %d, want %d", method, c.kind, response.StatusCode, c.status)
			}
		}
		if got := f.reasons(); !strings.Contains(got, "answers with a web page") {
			t.Errorf("%s: the reported failures are %q", c.kind, got)
		}
	}
}

// TestAnswers checks that the client gets status 502 if the mirror answers with status 200 but
// without the requested manifest or blob. containerd then tries the next mirror.
func TestAnswers(t *testing.T) {
	const (
		index, docker = ocispec.MediaTypeImageIndex, "application/vnd.docker.distribution.manifest.v2+json"
		good          = `{"schemaVersion":2,"mediaType":"` + index + `","manifests":[]}`
		portal        = `{"error":"sign in"}`
	)
	by := digest.FromString(good).String()
	manifest, blob := "/through/m/v2/web/manifests/", "/through/m/v2/web/blobs/"
	for _, c := range []struct {
		name, path, mediaType, named, content string
		why                                   string // part of the failure; empty: there is none
	}{
		{"a manifest", manifest + "1", index, by, good, ""},
		{"a type with a parameter", manifest + "1", index + "; charset=utf-8", "", good, ""},
		{"a manifest by its digest", manifest + by, index, by, good, ""},
		{"a manifest of Docker", manifest + "1", docker, "", `{"schemaVersion":2}`, ""},
		{"text", manifest + "1", "text/plain", "", "sign in", "of the type text/plain instead of a manifest"},
		{"without a type", manifest + "1", "", "", good, "without a type instead of a manifest"},
		{"JSON", manifest + "1", "application/json", "", portal, "of the type application/json"},
		{"an attachment", manifest + "1", "application/octet-stream", "", good, "of the type application/octet-stream"},
		{"schema 1", manifest + "1", "application/vnd.docker.distribution.manifest.v1+json", "", `{"schemaVersion":1}`, "of the type application/vnd.docker.distribution.manifest.v1+json"},
		{"a web page with the type of a manifest", manifest + "1", index, "", "<html>", "it is not JSON"},
		{"other JSON with the type of a manifest", manifest + "1", index, "", portal, "its schemaVersion is 0"},
		{"two types", manifest + "1", docker, "", good, "of the type " + index + ", and calls it " + docker},
		{"another manifest", manifest + by, index, "", good + " ", "another content than " + by},
		{"another digest in the header", manifest + by, index, digest.FromString("x").String(), good, "instead of " + by},
		{"a wrong digest in the header", manifest + "1", index, digest.FromString("x").String(), good, "another content than"},
		{"a manifest that is too large", manifest + "1", index, "", good + strings.Repeat(" ", maxManifest), "more than 4096 KiB"},
		{"a blob", blob + digest.FromString("abc").String(), "text/plain", "", "abc", ""},
		{"a large blob", blob + digest.FromString(strings.Repeat("x", smallBlob+1)).String(), "", "", strings.Repeat("x", smallBlob+1), ""},
		{"another blob", blob + digest.FromString("abc").String(), "application/octet-stream", "", "sign in", "another content than"},
		{"a web page for a blob", blob + digest.FromString("abc").String(), "text/html", "", "sign in", "web page"},
	} {
		registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			if c.mediaType != "" {
				w.Header().Set("Content-Type", c.mediaType)
			}
			if c.named != "" {
				w.Header().Set("Docker-Content-Digest", c.named)
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(c.content)))
			fmt.Fprint(w, c.content)
		}))
		f := newFront(t, registry.URL, patient)
		response, content := f.ask("GET", c.path)
		switch got := f.reasons(); {
		case c.why == "" && (response.StatusCode != 200 || content != c.content || got != ""):
			t.Errorf("%s: %d %.80q, the reported failures are %q", c.name, response.StatusCode, content, got)
		case c.why != "" && (response.StatusCode != 502 || !strings.Contains(got, c.why) || !strings.HasPrefix(got, "mirror.example.com answers ")):
			t.Errorf("%s: %d, the reported failures are %q, want %q", c.name, response.StatusCode, got, c.why)
		}
		registry.Close()
	}
}

// TestEncoding checks that the proxy requests uncompressed content from a mirror, although
// containerd accepts compressed content. If the mirror compresses its answer in any case (always),
// the client gets status 502.
func TestEncoding(t *testing.T) {
	content := `{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageIndex + `","manifests":[]}`
	for _, always := range []bool{false, true} {
		registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v2/moved/") {
				http.Redirect(w, r, strings.Replace(r.URL.Path, "moved", "web", 1), http.StatusTemporaryRedirect)
				return
			}
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			if !always && !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				fmt.Fprint(w, content)
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprint(z, content)
			z.Close()
		}))
		for _, target := range []string{"web/manifests/1", "moved/manifests/1", "web/manifests/" + digest.FromString(content).String(), "web/blobs/" + digest.FromString(content).String()} {
			f := newFront(t, registry.URL, patient)
			// the header that containerd sends
			response, got := f.ask("GET", "/through/m/v2/"+target, "Accept-Encoding", "zstd;q=1.0, gzip;q=0.8, deflate;q=0.5")
			switch why := f.reasons(); {
			case !always && (response.StatusCode != 200 || got != content || why != ""):
				t.Errorf("%s: %d %.80q, the reported failures are %q", target, response.StatusCode, got, why)
			case always && (response.StatusCode != 502 || !strings.Contains(why, "Content-Encoding gzip")):
				t.Errorf("%s, compressed: %d, the reported failures are %q", target, response.StatusCode, why)
			}
		}
		registry.Close()
	}
}

// TestUnknownLength checks blobs if the mirror does not announce their length. If such a blob does
// not match its digest, the client gets an error before the end of the blob, and the proxy skips
// the mirror for some time.
func TestUnknownLength(t *testing.T) {
	content := strings.Repeat("x", smallBlob+1)
	var probes atomic.Int32
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			probes.Add(1)
			return
		}
		w.(http.Flusher).Flush()
		fmt.Fprint(w, content)
	}))
	defer registry.Close()
	f := newFront(t, registry.URL, patient)
	if _, got := f.ask("GET", "/through/m/v2/web/blobs/"+digest.FromString(content).String()); got != content {
		t.Errorf("%.80q", got)
	}
	if _, got := f.ask("GET", "/through/m/v2/web/blobs/"+digest.FromString("other").String()); got != "cut off" {
		t.Errorf("another content: %.80q", got)
	}
	if got := f.reasons(); got != "mirror.example.com "+errOther.Error() {
		t.Errorf("the reported failures are %q", got)
	}
	// The proxy must send no probe, because it would use the mirror again after the answer to a
	// probe.
	for range 200 {
		if response, _ := f.ask("GET", "/through/m/v2/web/blobs/"+digest.FromString(content).String()); response.StatusCode != http.StatusBadGateway {
			t.Fatalf("the proxy does not skip the mirror: status %d, after %d probes", response.StatusCode, probes.Load())
		}
	}
	if n := probes.Load(); n != 0 {
		t.Errorf("%d probes", n)
	}
}

// TestTrickle checks that the proxy cancels its request if the answer of a mirror is too slow and
// does not end. In place of a manifest, the client gets status 502, and can try the next mirror. In
// a blob, the client gets an error before the end.
func TestTrickle(t *testing.T) {
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
		for tick := time.Tick(5 * time.Millisecond); ; {
			fmt.Fprint(w, " ")
			w.(http.Flusher).Flush()
			select {
			case <-tick:
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer registry.Close()
	f := newFront(t, registry.URL, limits{answer: patient.answer, pace: transfer.Pace{Stall: 300 * time.Millisecond, Window: time.Hour}, pause: time.Nanosecond})
	if response, content := f.ask("GET", "/through/m/v2/web/manifests/1"); response.StatusCode != http.StatusBadGateway || !strings.Contains(content, "does not answer completely within 300ms") {
		t.Errorf("%d %q", response.StatusCode, content)
	}
	f = newFront(t, registry.URL, limits{answer: patient.answer, pace: transfer.Pace{Stall: time.Hour, Window: 300 * time.Millisecond, MinBytes: 1 << 20}, pause: time.Nanosecond})
	if _, content := f.ask("GET", "/through/m/v2/web/blobs/sha256:b"); content != "cut off" {
		t.Errorf("the client accepts %.80q as the complete file", content)
	}
	if got := f.reasons(); !strings.Contains(got, "does not answer within a file: it is too slow") {
		t.Errorf("the reported failures are %q", got)
	}
}

// TestReasons checks that the error that a client gets does not contain the URL of the request,
// because the query of the URL may contain secrets.
func TestReasons(t *testing.T) {
	f := newFront(t, "http://127.0.0.1:1", patient)
	if _, content := f.ask("GET", "/through/m/v2/web/manifests/1?secret=x"); strings.Contains(content, "secret") {
		t.Errorf("%q", content)
	}
	if f.reasons() == "" {
		t.Errorf("no failure is reported: %q", f.reasons())
	}
}

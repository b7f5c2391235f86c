package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
)

// Upstream is a registry that requests are passed on to.
type Upstream struct {
	// Name is the registry's address as messages have it.
	Name string
	// URL is its scheme, and its host with or without a port.
	URL url.URL
	// Client asks it, and follows its redirects.
	Client *http.Client
}

// Upstreams are the registries that are known now.
type Upstreams interface {
	// Upstream returns the registry of a request's path, HOST/v2/…; false: there is none.
	Upstream(path string) (Upstream, bool)
}

// ProxyHeader is the header with the token of a handler that Through returns. Authorization is
// the registry's.
const ProxyHeader = "Orlop-Mirror"

// ProxyPath is what the path of a request begins with; HOST/v2/… follows.
const ProxyPath = "/through/"

// limits are the times that an upstream has.
type limits struct {
	answer time.Duration // until the answer begins, with all redirects
	stall  time.Duration // until the next byte of an answer
	rest   time.Duration // that it is not asked after one of these is over
}

// usual are the limits, unless a test has others. The answer's is promised by the configuration's
// reference (registries).
var usual = limits{answer: 5 * time.Second, stall: 15 * time.Second, rest: 30 * time.Second}

// Proxy returns a handler that passes requests to registries on, and gives up on one that does
// not answer in 5 s: containerd has a limit for the connection alone, waits 30 s for each answer,
// and asks the next registry only then. A registry that did not answer is not asked for 30 s, or
// until it answers a request for /v2/. What is no answer of a registry, as the page of a proxy,
// becomes 502, on which containerd asks the next one.
//
// Requests without the token get 403. failed is called when a registry begins to fail, with the
// reason.
func Proxy(known Upstreams, token string, failed func(registry string, reason error)) http.Handler {
	return newThrough(known, token, failed, usual)
}

type through struct {
	known  Upstreams
	token  []byte
	failed func(string, error)
	limits limits

	mu      sync.Mutex
	resting map[string]time.Time // until when registries are not asked, by their names
	// until when failures of registries are not told again, by their names
	told map[string]time.Time
}

func newThrough(known Upstreams, token string, failed func(string, error), l limits) *through {
	return &through{known: known, token: []byte(token), failed: failed, limits: l, resting: map[string]time.Time{}, told: map[string]time.Time{}}
}

// ServeHTTP is http.Handler's.
func (t *through) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !authorized(w, r, r.Header.Get(ProxyHeader), t.token) {
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "images are pulled here, and not pushed", http.StatusMethodNotAllowed)
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, ProxyPath)
	up, known := t.known.Upstream(path)
	if !ok || !known || strings.Contains(path, "/../") || strings.HasSuffix(path, "/..") {
		http.NotFound(w, r)
		return
	}
	if t.rests(up.Name) {
		http.Error(w, fmt.Sprintf("the mirror %s did not answer a moment ago", up.Name), http.StatusBadGateway)
		return
	}
	_, below, _ := strings.Cut(path, "/")
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: up.URL.Scheme, Host: up.URL.Host, Path: "/" + below, RawQuery: p.In.URL.RawQuery}
			p.Out.Host, p.Out.RequestURI = "", ""
			p.Out.Header.Del(ProxyHeader)
		},
		Transport:      asking{t, up},
		ModifyResponse: answersAsRegistry,
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { t.fail(w, r, up, err) },
		ErrorLog:       log.New(io.Discard, "", 0), // failures are told by failed
	}
	proxy.ServeHTTP(w, r)
}

// fail answers for a registry that did not.
func (t *through) fail(w http.ResponseWriter, r *http.Request, up Upstream, err error) {
	if r.Context().Err() != nil { // who asked has left
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	if errors.Is(err, errSilent) {
		t.rest(up)
	}
	t.tell(up.Name, err)
	http.Error(w, fmt.Sprintf("the mirror %s: %v", up.Name, err), http.StatusBadGateway)
}

// tell says why a registry fails, once in a while.
func (t *through) tell(name string, err error) {
	t.mu.Lock()
	now := time.Now()
	again := now.Before(t.told[name])
	if !again {
		t.told[name] = now.Add(t.limits.rest)
	}
	t.mu.Unlock()
	if !again {
		t.failed(name, err)
	}
}

func (t *through) rests(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.resting[name])
}

// rest has a registry not asked for a while. One that is slow only, as it fetches from others
// first, answers in the meantime that it is there.
func (t *through) rest(up Upstream) {
	until := time.Now().Add(t.limits.rest)
	t.mu.Lock()
	t.resting[up.Name] = until
	t.mu.Unlock()
	panics.Go("mirror "+up.Name, func() {
		ctx, cancel := context.WithDeadline(context.Background(), until)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, up.URL.Scheme+"://"+up.URL.Host+"/v2/", nil)
		if err != nil {
			return
		}
		response, err := up.Client.Do(r)
		if err != nil {
			return
		}
		response.Body.Close()
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.resting[up.Name].Equal(until) {
			delete(t.resting, up.Name)
		}
	})
}

// errSilent says that a registry takes too long.
var errSilent = errors.New("does not answer")

// asking is an upstream as a transport.
type asking struct {
	t  *through
	up Upstream
}

// RoundTrip is http.RoundTripper's.
func (a asking) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	silent := fmt.Errorf("%w for %s", errSilent, a.t.limits.answer)
	timer := time.AfterFunc(a.t.limits.answer, func() { cancel(silent) })
	response, err := a.up.Client.Do(r.WithContext(ctx))
	timer.Stop()
	if err != nil {
		defer cancel(nil)
		if errors.Is(context.Cause(ctx), errSilent) {
			return nil, silent
		}
		var wrapped *url.Error
		if errors.As(err, &wrapped) { // its text repeats the request
			err = wrapped.Err
		}
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			return nil, fmt.Errorf("%w: %w", errSilent, err)
		}
		return nil, err
	}
	response.Body = &watched{ReadCloser: response.Body, a: a, ctx: ctx, cancel: cancel}
	return response, nil
}

// watched is the body of an answer that has to go on.
type watched struct {
	io.ReadCloser
	a      asking
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Read ends when nothing comes for a while. The time that who asked takes for what has come does
// not count.
func (b *watched) Read(p []byte) (int, error) {
	silent := fmt.Errorf("%w amid a file for %s", errSilent, b.a.t.limits.stall)
	timer := time.AfterFunc(b.a.t.limits.stall, func() { b.cancel(silent) })
	n, err := b.ReadCloser.Read(p)
	timer.Stop()
	if err != nil && err != io.EOF && errors.Is(context.Cause(b.ctx), errSilent) {
		b.a.t.rest(b.a.up)
		b.a.t.tell(b.a.up.Name, silent)
		err = silent
	}
	return n, err
}

// Close is io.Closer's.
func (b *watched) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// answersAsRegistry refuses a page with status 200: what a proxy, a portal or a web server says for
// people.
func answersAsRegistry(r *http.Response) error {
	if r.StatusCode >= 300 {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // what is no type is no page
	if kind == "text/html" || kind == "application/xhtml+xml" {
		return fmt.Errorf("answers with a page (%s) instead of an image: it is no registry, or a proxy before it wants something", kind)
	}
	return nil
}

package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/loopback"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// Upstream is a registry to which requests are forwarded.
type Upstream struct {
	// Name is the address of the registry in messages.
	Name string
	// URL is its scheme and its host, with or without a port.
	URL url.URL
	// Client sends the requests, and follows redirects of the registry.
	Client *http.Client
}

// Upstreams is the current set of registries.
type Upstreams interface {
	// Upstream returns the registry for a request path HOST/v2/…, and reports whether it exists.
	Upstream(path string) (Upstream, bool)
}

// ProxyHeader is the header with the token for the handler of Proxy. The header Authorization
// cannot carry the token, because it is for the registry.
const ProxyHeader = "Orlop-Mirror"

// ProxyPath is the prefix of request paths; HOST/v2/… follows.
const ProxyPath = "/through/"

// limits are the time limits for an upstream.
type limits struct {
	answer time.Duration // time until the answer begins, including all redirects
	pace   transfer.Pace // minimum pace of the body; a manifest is complete within pace.Stall
	pause  time.Duration // pause after a timeout
}

// defaultLimits are the limits outside tests. The reference of the configuration (registries)
// documents the limit for the answer.
var defaultLimits = limits{answer: 5 * time.Second, pace: transfer.DefaultPace, pause: 30 * time.Second}

// Proxy returns a handler that forwards requests to registries, with a limit of 5 s for the start
// of an answer. The limit is necessary because containerd limits only the connection time; it waits
// 30 s for each answer before it tries the next registry. After a timeout, Proxy sends no request
// to the registry for 30 s. If the reason for the pause is that no answer began in time, the pause
// ends as soon as the registry answers a request for /v2/. An answer that is not from a registry,
// for example the page of a proxy, becomes 502 (checkAnswer), after which containerd tries the next
// registry.
//
// Requests without the token get 403. Proxy calls failed() with the reason when a registry fails,
// at most once in 30 s per registry.
func Proxy(known Upstreams, token string, failed func(registry string, reason error)) http.Handler {
	return newProxy(known, token, failed, defaultLimits)
}

type proxy struct {
	known  Upstreams
	token  []byte
	failed func(string, error)
	limits limits

	mu          sync.Mutex
	pausedUntil map[string]time.Time // end of the pause after a timeout, by registry name
	// end of the time in which failures are not reported again, by registry name
	reportedUntil map[string]time.Time
}

func newProxy(known Upstreams, token string, failed func(string, error), l limits) *proxy {
	return &proxy{known: known, token: []byte(token), failed: failed, limits: l, pausedUntil: map[string]time.Time{}, reportedUntil: map[string]time.Time{}}
}

// ServeHTTP implements http.Handler.
func (t *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !loopback.Authorized(w, r, r.Header.Get(ProxyHeader), t.token) {
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "this registry accepts only pulls", http.StatusMethodNotAllowed)
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, ProxyPath)
	up, known := t.known.Upstream(path)
	if !ok || !known || strings.Contains(path, "/../") || strings.HasSuffix(path, "/..") {
		http.NotFound(w, r)
		return
	}
	if t.paused(up.Name) {
		http.Error(w, fmt.Sprintf("the mirror %s did not answer a moment ago", up.Name), http.StatusBadGateway)
		return
	}
	_, below, _ := strings.Cut(path, "/")
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: up.URL.Scheme, Host: up.URL.Host, Path: "/" + below, RawQuery: p.In.URL.RawQuery}
			p.Out.Host, p.Out.RequestURI = "", ""
			p.Out.Header.Del(ProxyHeader)
			// containerd requests compressed answers, but a digest is that of the content without
			// compression.
			p.Out.Header.Set("Accept-Encoding", "identity")
		},
		Transport:    upstreamTransport{t, up},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { t.fail(w, r, up, err) },
		ErrorLog:     log.New(io.Discard, "", 0), // the function failed reports the failures
	}
	proxy.ServeHTTP(w, r)
}

// fail answers a request after a failure of its registry.
func (t *proxy) fail(w http.ResponseWriter, r *http.Request, up Upstream, err error) {
	if r.Context().Err() != nil { // the client has disconnected
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	if errors.Is(err, errSilent) {
		t.pauseUntilAnswer(up)
	}
	t.report(up.Name, err)
	http.Error(w, fmt.Sprintf("the mirror %s: %v", up.Name, err), http.StatusBadGateway)
}

// report reports why a registry fails, at most once per limits.pause.
func (t *proxy) report(name string, err error) {
	t.mu.Lock()
	now := time.Now()
	again := now.Before(t.reportedUntil[name])
	if !again {
		t.reportedUntil[name] = now.Add(t.limits.pause)
	}
	t.mu.Unlock()
	if !again {
		t.failed(name, err)
	}
}

func (t *proxy) paused(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.pausedUntil[name])
}

// pause stops requests to a registry for limits.pause, and returns the end of the pause.
func (t *proxy) pause(up Upstream) (until time.Time) {
	until = time.Now().Add(t.limits.pause)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pausedUntil[up.Name] = until
	return until
}

// pauseUntilAnswer pauses a registry that does not answer. An answer to a request for /v2/ ends the
// pause early, because the registry may have been slow only because it fetched an image first.
func (t *proxy) pauseUntilAnswer(up Upstream) {
	until := t.pause(up)
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
		if t.pausedUntil[up.Name].Equal(until) {
			delete(t.pausedUntil, up.Name)
		}
	})
}

// errSilent is the error for a registry that exceeds a time limit.
var errSilent = errors.New("does not answer")

// upstreamTransport is the http.RoundTripper for an upstream.
type upstreamTransport struct {
	t  *proxy
	up Upstream
}

// RoundTrip implements http.RoundTripper.
func (a upstreamTransport) RoundTrip(r *http.Request) (*http.Response, error) {
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
		if errors.As(err, &wrapped) { // the text of url.Error repeats the request
			err = wrapped.Err
		}
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			return nil, fmt.Errorf("%w: %w", errSilent, err)
		}
		return nil, err
	}
	body := transfer.PacedBody(response.Body, a.t.limits.pace, cancel)
	response.Body = body
	if err := checkAnswer(response, targetOf(r.URL.Path), a.t.limits.pace.Stall, cancel); err != nil {
		body.Close()
		return nil, err
	}
	response.Body = watchedBody{response.Body, a}
	return response, nil
}

// watchedBody is the body of an answer. It pauses and reports a registry that is too slow, or that
// answers with another content than requested. This pause does not end early: the registry would
// answer a request for /v2/ at once, but the next attempt of the client would get the same body.
type watchedBody struct {
	io.ReadCloser
	a upstreamTransport
}

// Read implements io.Reader.
func (b watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, transfer.ErrSlow) {
		err = fmt.Errorf("%w within a file: it %w", errSilent, err)
	}
	if errors.Is(err, errSilent) || errors.Is(err, errOther) {
		b.a.t.pause(b.a.up)
		b.a.t.report(b.a.up.Name, err)
	}
	return n, err
}

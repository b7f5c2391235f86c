package kubeapiserver

import (
	"bufio"
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/orlop-os/orlop/orchestrator/revocation"
)

// Every request is checked against the revocations (package revocation), and a revocation ends
// requests in progress. tokens.go handles the tokens of pods of removed machines.

// revocations holds the revoked certificates, the existing Nodes and the requests in progress.
type revocations struct {
	file  *revocation.RevokedFile
	nodes nodes

	mu      sync.Mutex
	removed map[string]bool // names of removed machines that no other machine has
	active  map[*activeRequest]bool
}

// activeRequest is a request in progress.
type activeRequest struct {
	cert          *x509.Certificate // nil: the request has no certificate
	authenticated bool              // guarded by revocations.mu
	// the zero value: the request does not come from a pod, or its Node is not known yet
	on  node
	end context.CancelCauseFunc
}

// newRevocations reads the file. An unreadable file is an error: no revocation could be enforced.
func newRevocations(path string) (*revocations, error) {
	r := &revocations{active: map[*activeRequest]bool{}}
	var err error
	r.file, err = revocation.Open(path, r.enforce)
	r.enforce()
	return r, err
}

// watch polls the file until ctx is done. While the file is unreadable, the last content stays
// effective.
func (r *revocations) watch(ctx context.Context) { r.file.Watch(ctx) }

// enforce ends the requests that are now revoked.
func (r *revocations) enforce() {
	now := r.file.Current()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed = map[string]bool{}
	for _, v := range now.Revoked {
		if v.Machine != "" {
			r.removed[v.Machine] = true
		}
	}
	for g := range r.active {
		if r.removed[g.on.name] {
			g.end(errRemoved(g.on.name))
		}
		if g.cert == nil || !g.authenticated {
			continue // not authenticated yet: the authenticator rejects it with 401
		}
		if err := now.Check(g.cert); err != nil {
			g.end(err)
		}
	}
}

// wrapAuthenticator rejects requests with a revoked certificate, and requests of a pod of a deleted
// Node.
func (r *revocations) wrapAuthenticator(next authenticator.Request) authenticator.Request {
	known := r.file.WrapAuthenticator(next)
	return authenticator.RequestFunc(func(request *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := known.AuthenticateRequest(request)
		if err != nil || !ok {
			return response, ok, err
		}
		if response != nil {
			if err := r.checkNode(request.Context(), nodeOf(response.User)); err != nil {
				return nil, false, err
			}
		}
		if err := r.markAuthenticated(request); err != nil {
			return nil, false, err
		}
		return response, true, nil
	})
}

// markAuthenticated marks a request as authenticated: from now on a revocation ends it (enforce).
// If the certificate was revoked after its check, markAuthenticated returns an error.
func (r *revocations) markAuthenticated(request *http.Request) error {
	g, ok := request.Context().Value(activeRequestKey{}).(*activeRequest)
	if !ok {
		return nil
	}
	r.mu.Lock()
	g.authenticated = true
	r.mu.Unlock()
	return r.file.Check(request)
}

// track wraps the server: it ends a request when its certificate is revoked or the Node of its pod
// is deleted.
func (r *revocations) track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		ctx, end := context.WithCancelCause(request.Context())
		g := &activeRequest{cert: revocation.Certificate(request), end: end}
		ctx = context.WithValue(ctx, activeRequestKey{}, g)
		r.mu.Lock()
		r.active[g] = true
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			delete(r.active, g)
			r.mu.Unlock()
			end(nil)
		}()
		if request.ProtoMajor == 1 && request.Header.Get("Upgrade") != "" {
			w = &closingWriter{w, ctx}
		}
		next.ServeHTTP(w, request.WithContext(ctx))
	})
}

// closingWriter is the response writer of a request that switches the protocol (exec, attach,
// port-forward by SPDY). The new protocol on the connection does not end with the request's
// context, so closingWriter closes the connection.
type closingWriter struct {
	http.ResponseWriter
	ctx context.Context
}

// Unwrap returns the wrapped writer, which http.ResponseController uses for its other methods.
func (e *closingWriter) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// Flush implements http.Flusher. A writer without Flush has no buffered data.
func (e *closingWriter) Flush() { _ = http.NewResponseController(e.ResponseWriter).Flush() }

// CloseNotify implements http.CloseNotifier, which upstream requires.
func (e *closingWriter) CloseNotify() <-chan bool {
	//lint:ignore SA1019 upstream's handlers require it
	if n, ok := e.ResponseWriter.(http.CloseNotifier); ok {
		return n.CloseNotify()
	}
	return make(chan bool)
}

// Hijack implements http.Hijacker.
func (e *closingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(e.ResponseWriter).Hijack()
	if err == nil {
		// the request has ended, or its caller is revoked
		context.AfterFunc(e.ctx, func() { _ = conn.Close() })
	}
	return conn, rw, err
}

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

// What counts no more (package refused) is asked with every request, and ends those that go on.
// What the pods of a machine show that was removed stands in removed.go.

// revocations is the list, the Nodes that are there, and the requests that go on.
type revocations struct {
	file  *revocation.RevokedFile
	nodes nodes

	mu    sync.Mutex
	out   map[string]bool // names of machines that were taken out, and are nobody's again
	going map[*going]bool
}

// going is a request that goes on.
type going struct {
	cert     *x509.Certificate // nil: it has shown none
	admitted bool              // it was authenticated; guarded by revocations.mu
	on       node              // the zero value: it does not come from a pod, or nobody knows yet
	end      context.CancelCauseFunc
}

// newRevocations reads the list. One that cannot be read is an error: nobody could be kept out.
func newRevocations(path string) (*revocations, error) {
	r := &revocations{going: map[*going]bool{}}
	var err error
	r.file, err = revocation.Open(path, r.enforce)
	r.enforce()
	return r, err
}

// follow looks at the list until ctx is done. What cannot be read leaves the list as it was.
func (r *revocations) follow(ctx context.Context) { r.file.Watch(ctx) }

// enforce ends the requests of those that are on the list.
func (r *revocations) enforce() {
	now := r.file.Current()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out = map[string]bool{}
	for _, v := range now.Revoked {
		if v.Machine != "" {
			r.out[v.Machine] = true
		}
	}
	for g := range r.going {
		if r.out[g.on.name] {
			g.end(errOut(g.on.name))
		}
		if g.cert == nil || !g.admitted {
			continue // a request that is not authenticated yet is rejected by guard, with 401
		}
		if err := now.Check(g.cert); err != nil {
			g.end(err)
		}
	}
}

// guard stands around an authenticator: with a certificate that counts no more nobody is anybody,
// nor is a pod whose Node is gone.
func (r *revocations) guard(next authenticator.Request) authenticator.Request {
	known := r.file.WrapAuthenticator(next)
	return authenticator.RequestFunc(func(request *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := known.AuthenticateRequest(request)
		if err != nil || !ok {
			return response, ok, err
		}
		if response != nil {
			if err := r.present(request.Context(), nodeOf(response.User)); err != nil {
				return nil, false, err
			}
		}
		if err := r.admit(request); err != nil {
			return nil, false, err
		}
		return response, true, nil
	})
}

// admit marks a request as authenticated: from now on a revocation ends it (enforce). A revocation
// that came since guard has checked the certificate is an error.
func (r *revocations) admit(request *http.Request) error {
	g, ok := request.Context().Value(goingKey{}).(*going)
	if !ok {
		return nil
	}
	r.mu.Lock()
	g.admitted = true
	r.mu.Unlock()
	return r.file.Check(request)
}

// hold stands around the server: a request ends when its certificate is revoked, or the Node of its
// pod goes.
func (r *revocations) hold(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		ctx, end := context.WithCancelCause(request.Context())
		g := &going{cert: revocation.Certificate(request), end: end}
		ctx = context.WithValue(ctx, goingKey{}, g)
		r.mu.Lock()
		r.going[g] = true
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			delete(r.going, g)
			r.mu.Unlock()
			end(nil)
		}()
		if request.ProtoMajor == 1 && request.Header.Get("Upgrade") != "" {
			w = &ended{w, ctx}
		}
		next.ServeHTTP(w, request.WithContext(ctx))
	})
}

// ended is the answer to a request that asks for another protocol (exec, attach, port-forward by
// SPDY). What is spoken on its connection then does not end with the request's context, so the
// connection is closed.
type ended struct {
	http.ResponseWriter
	ctx context.Context
}

// Unwrap lets http.ResponseController find what else the writer can do.
func (e *ended) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// Flush implements http.Flusher.
// one that cannot has nothing to flush
func (e *ended) Flush() { _ = http.NewResponseController(e.ResponseWriter).Flush() }

// CloseNotify implements http.CloseNotifier, which upstream asks for.
func (e *ended) CloseNotify() <-chan bool {
	if n, ok := e.ResponseWriter.(http.CloseNotifier); ok { //nolint:staticcheck // upstream's handlers want it of every writer
		return n.CloseNotify()
	}
	return make(chan bool)
}

// Hijack implements http.Hijacker.
func (e *ended) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(e.ResponseWriter).Hijack()
	if err == nil {
		// the request is over, or its caller counts no more
		context.AfterFunc(e.ctx, func() { _ = conn.Close() })
	}
	return conn, rw, err
}

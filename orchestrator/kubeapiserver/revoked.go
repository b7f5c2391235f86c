package kubeapiserver

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/pkg/trust"
)

// Kubernetes believes a client certificate until it ends. A machine that was removed from the cluster has some that are good for months,
// so the list of what was revoked, which machined keeps in a file, is asked with every request, and ends those that go on. What the pods of
// such a machine show stands in removed.go.

// lookEvery is how often the list is looked at, and so how long what is revoked counts at most.
const lookEvery = time.Second

// revocations is the list, the Nodes that are there, and the requests that go on.
type revocations struct {
	file  string
	nodes nodes

	mu    sync.Mutex
	stamp string // of the file as last read
	list  []trust.Revocation
	out   map[string]bool // names of machines that were taken out, and are nobody's again
	going map[*going]bool
}

// going is a request that goes on.
type going struct {
	cert *x509.Certificate // nil: it has shown none
	on   node              // the zero value: it does not come from a pod, or nobody knows yet
	end  context.CancelCauseFunc
}

// newRevocations reads the list. One that cannot be read is an error: nobody could be kept out.
func newRevocations(file string) (*revocations, error) {
	r := &revocations{file: file, going: map[*going]bool{}}
	return r, r.look()
}

// follow looks at the list until ctx is done. What cannot be read leaves the list as it was.
func (r *revocations) follow(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for told := ""; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := r.look(); err != nil {
			if told != err.Error() {
				told = err.Error()
				klog.ErrorS(err, "Revoked certificates")
			}
			continue
		}
		told = ""
	}
}

// look reads the list if it is another file than before, and ends the requests of those that are on it.
func (r *revocations) look() error {
	info, err := os.Stat(r.file)
	if err != nil {
		return fmt.Errorf("revoked certificates: %w", err)
	}
	// It is replaced by rename, so another content is another file.
	stamp := fmt.Sprint(info.ModTime().UnixNano(), info.Size())
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		stamp += fmt.Sprint(" ", s.Ino)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if stamp == r.stamp {
		return nil
	}
	text, err := os.ReadFile(r.file)
	var list []trust.Revocation
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return fmt.Errorf("revoked certificates: %w", err)
	}
	r.stamp, r.list, r.out = stamp, list, map[string]bool{}
	for _, v := range list {
		if v.Machine != "" {
			r.out[v.Machine] = true
		}
	}
	for g := range r.going {
		if r.out[g.on.name] {
			g.end(errOut(g.on.name))
		}
		if g.cert == nil {
			continue
		}
		if err := trust.Refusal(list, g.cert); err != nil {
			g.end(err)
		}
	}
	return nil
}

// refusal is why a request's certificate counts no more; nil for one that counts, and for a request without one.
func (r *revocations) refusal(request *http.Request) error {
	cert := certificate(request)
	if cert == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return trust.Refusal(r.list, cert)
}

// certificate is what the caller has shown. Whether it is good is for the authenticator to say.
func certificate(request *http.Request) *x509.Certificate {
	if request.TLS == nil || len(request.TLS.PeerCertificates) == 0 {
		return nil
	}
	return request.TLS.PeerCertificates[0]
}

// guard stands around an authenticator: with a certificate that was revoked nobody is anybody, whatever else he shows, nor is a pod whose
// Node is gone. What the authenticator remembers of earlier requests makes no difference.
func (r *revocations) guard(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(request *http.Request) (*authenticator.Response, bool, error) {
		if err := r.refusal(request); err != nil {
			return nil, false, err
		}
		response, ok, err := next.AuthenticateRequest(request)
		if err != nil || !ok || response == nil {
			return response, ok, err
		}
		if err := r.present(request.Context(), nodeOf(response.User)); err != nil {
			return nil, false, err
		}
		return response, true, nil
	})
}

// hold stands around the server: a request ends when its certificate is revoked, or the Node of its pod goes.
func (r *revocations) hold(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		ctx, end := context.WithCancelCause(request.Context())
		g := &going{cert: certificate(request), end: end}
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

// ended is the answer to a request that asks for another protocol (exec, attach, port-forward by SPDY). What is spoken on its connection
// then does not end with the request's context, so the connection is closed.
type ended struct {
	http.ResponseWriter
	ctx context.Context
}

// Unwrap lets http.ResponseController find what else the writer can do.
func (e *ended) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// Flush implements http.Flusher.
func (e *ended) Flush() { _ = http.NewResponseController(e.ResponseWriter).Flush() } // one that cannot has nothing to flush

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
		context.AfterFunc(e.ctx, func() { _ = conn.Close() }) // the request is over, or its caller counts no more
	}
	return conn, rw, err
}

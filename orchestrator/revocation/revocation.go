// Package revocation keeps those out whose client certificate counts no more. Kubernetes believes one
// until it ends, and some are good for months; so machined keeps a file of what was revoked, and of
// whose callers count (trust.Refused), which the API server and the kubelet ask with every request.
package revocation

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/trust"
)

// pollInterval is how often the file is checked while no request comes, so that requests in
// progress end. A new request always checks the file first.
const pollInterval = time.Second

// RevokedFile is the file as it was last read.
type RevokedFile struct {
	path    string
	changed func() // runs after each reading of new content; may be nil

	mu    sync.Mutex
	stamp string
	now   trust.RevokedSet
}

// Open reads the file, and returns an error if it cannot be read: no revocation could be enforced.
// changed runs after each later reading of new content, in the goroutine that read it; it may be
// nil.
func Open(path string, changed func()) (*RevokedFile, error) {
	f := &RevokedFile{path: path}
	err := f.Reload()
	f.changed = changed
	return f, err
}

// Reload reads the file if it was replaced since the last reading: one stat(2) if it was not. A file
// that cannot be read leaves the last reading in force.
func (f *RevokedFile) Reload() error {
	read, err := f.read()
	if read && f.changed != nil {
		f.changed()
	}
	return err
}

// read is Look without the call of changed; it reports whether there was new content.
func (f *RevokedFile) read() (bool, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return false, fmt.Errorf("revoked certificates: %w", err)
	}
	stamp := durable.Stamp(info)
	f.mu.Lock()
	defer f.mu.Unlock()
	if stamp == f.stamp {
		return false, nil
	}
	text, err := os.ReadFile(f.path)
	var next trust.RevokedSet
	if err == nil {
		err = json.Unmarshal(text, &next)
	}
	if err != nil {
		return false, fmt.Errorf("revoked certificates: %w", err)
	}
	f.stamp, f.now = stamp, next
	return true, nil
}

// Current is what it says.
func (f *RevokedFile) Current() trust.RevokedSet {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Watch checks the file until ctx is done, so that new content is found while no request comes.
func (f *RevokedFile) Watch(ctx context.Context) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for logged := ""; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		switch err := f.Reload(); {
		case err == nil:
			logged = ""
		case logged != err.Error():
			logged = err.Error()
			klog.ErrorS(err, "Revoked certificates")
		}
	}
}

// Check returns why the request's client certificate is rejected; nil for a valid one, and for a
// request without one. It checks the file first, so that a revocation is in force for every request
// that comes after the file was written. If the file cannot be read, the last reading is in force,
// and Follow logs the error.
func (f *RevokedFile) Check(request *http.Request) error {
	_ = f.Reload()
	cert := Certificate(request)
	if cert == nil {
		return nil
	}
	return f.Current().Check(cert)
}

// Certificate is what the caller has shown; nil if that is nothing. Whether it is good is for the
// authenticator to say.
func Certificate(request *http.Request) *x509.Certificate {
	if request.TLS == nil || len(request.TLS.PeerCertificates) == 0 {
		return nil
	}
	return request.TLS.PeerCertificates[0]
}

// WrapAuthenticator stands around an authenticator: with a certificate that counts no more nobody is anybody,
// whatever else he shows. What the authenticator remembers of earlier requests makes no difference.
func (f *RevokedFile) WrapAuthenticator(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(request *http.Request) (*authenticator.Response, bool, error) {
		if err := f.Check(request); err != nil {
			return nil, false, err
		}
		return next.AuthenticateRequest(request)
	})
}

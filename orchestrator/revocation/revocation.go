// Package revocation rejects requests made with a revoked client certificate. Kubernetes accepts a
// certificate until it expires, and some are valid for months. So machined writes a file of
// revocations and trusted operator CAs (trust.RevokedSet), against which the API server and the
// kubelet check every request.
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

	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/trust"
)

// pollInterval is the interval of checks of the file between requests, so that requests in progress
// end. A new request always checks the file first.
const pollInterval = time.Second

// RevokedFile is the content of the file at the last read.
type RevokedFile struct {
	path    string
	changed func() // called after each load of new content; may be nil

	mu    sync.Mutex
	stamp string
	set   trust.RevokedSet
}

// Open reads the file. An unreadable file is an error, because no revocation could be enforced.
// changed is called after each later load of new content, in the loading goroutine; it may be nil.
func Open(path string, changed func()) (*RevokedFile, error) {
	f := &RevokedFile{path: path}
	err := f.Reload()
	f.changed = changed
	return f, err
}

// Reload reads the file if it was replaced since the last read; otherwise it costs a stat(2). If
// the file is unreadable, the last content stays effective.
func (f *RevokedFile) Reload() error {
	read, err := f.read()
	if read && f.changed != nil {
		f.changed()
	}
	return err
}

// read is Reload without the call of changed. It reports whether the file has new content.
func (f *RevokedFile) read() (bool, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return false, fmt.Errorf("revoked certificates: %w", err)
	}
	stamp := safefile.Stamp(info)
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
	f.stamp, f.set = stamp, next
	return true, nil
}

// Current returns the content of the last read.
func (f *RevokedFile) Current() trust.RevokedSet {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.set
}

// Watch checks the file until ctx is done, so that new content takes effect without a request.
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

// Check returns why the request's client certificate is rejected, or nil for a valid certificate
// and for a request without a certificate. It checks the file first, so that a revocation is
// effective for every request after the file was written. If the file is unreadable, the last
// content stays effective, and Watch logs the error.
func (f *RevokedFile) Check(request *http.Request) error {
	_ = f.Reload()
	cert := Certificate(request)
	if cert == nil {
		return nil
	}
	return f.Current().Check(cert)
}

// Certificate returns the client certificate of the request, or nil. The authenticator verifies it.
func Certificate(request *http.Request) *x509.Certificate {
	if request.TLS == nil || len(request.TLS.PeerCertificates) == 0 {
		return nil
	}
	return request.TLS.PeerCertificates[0]
}

// WrapAuthenticator returns an authenticator that rejects a revoked certificate, even if the
// request also carries a valid token. Cached results of next have no effect on this check.
func (f *RevokedFile) WrapAuthenticator(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(request *http.Request) (*authenticator.Response, bool, error) {
		if err := f.Check(request); err != nil {
			return nil, false, err
		}
		return next.AuthenticateRequest(request)
	})
}

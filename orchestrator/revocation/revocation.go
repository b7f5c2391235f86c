// Package revocation rejects requests with a revoked client certificate. Kubernetes accepts a
// client certificate until it expires, which may take months. So machined writes a file with the
// revocations and the trusted operator CAs (trust.RevokedSet). The API server and the kubelet check
// every request against this file.
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

// pollInterval is the interval at which Watch checks the file. It matters for requests in progress,
// which a revocation must end. A new request always checks the file first.
const pollInterval = time.Second

// RevokedFile is the file of revocations, with its content at the last read.
type RevokedFile struct {
	path    string
	changed func() // called after each later read of new content; may be nil

	mu    sync.Mutex
	stamp string
	set   trust.RevokedSet
}

// Open reads the file. It returns an error if the file is unreadable, because then no revocation
// could be enforced. After each later read of new content, the goroutine that has read it calls
// changed. changed may be nil.
func Open(path string, changed func()) (*RevokedFile, error) {
	f := &RevokedFile{path: path}
	err := f.Reload()
	f.changed = changed
	return f, err
}

// Reload reads the file if it was replaced since the last read. Otherwise it only calls stat(2). If
// the file is unreadable, Reload returns an error, and the last content stays effective.
func (f *RevokedFile) Reload() error {
	read, err := f.read()
	if read && f.changed != nil {
		f.changed()
	}
	return err
}

// read does the same as Reload, without the call of changed. It returns true if the file had new
// content.
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

// Current returns the content of the file at the last read.
func (f *RevokedFile) Current() trust.RevokedSet {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.set
}

// Watch checks the file every pollInterval until ctx is done. So new content takes effect even
// without a new request.
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

// Check returns an error if the client certificate of the request is revoked or of an untrusted
// operator CA. It returns nil for a request without a certificate. Check first reloads the file, so
// a revocation is effective for every request after the file was written. If the file is
// unreadable, the last content stays effective, and Watch logs the error.
func (f *RevokedFile) Check(request *http.Request) error {
	_ = f.Reload()
	cert := Certificate(request)
	if cert == nil {
		return nil
	}
	return f.Current().Check(cert)
}

// Certificate returns the client certificate of the request, or nil. It does not verify the
// certificate, which is the task of the authenticator.
func Certificate(request *http.Request) *x509.Certificate {
	if request.TLS == nil || len(request.TLS.PeerCertificates) == 0 {
		return nil
	}
	return request.TLS.PeerCertificates[0]
}

// WrapAuthenticator returns an authenticator that rejects a request with a revoked certificate,
// even if the request also has a valid token. It checks before it calls next, so results that next
// has cached have no effect.
func (f *RevokedFile) WrapAuthenticator(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(request *http.Request) (*authenticator.Response, bool, error) {
		if err := f.Check(request); err != nil {
			return nil, false, err
		}
		return next.AuthenticateRequest(request)
	})
}

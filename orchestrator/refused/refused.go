// Package refused keeps those out whose client certificate counts no more. Kubernetes believes one until it ends, and some are good for months; so
// machined keeps a file of what was revoked, and of whose callers count (trust.Refused), which the API server and the kubelet ask with every request.
package refused

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

// lookEvery is how often the file is looked at, and so how long what is revoked counts at most.
const lookEvery = time.Second

// File is the file as it was last read.
type File struct {
	path string

	mu    sync.Mutex
	stamp string
	now   trust.Refused
}

// Open reads the file. One that cannot be read is an error: nobody could be kept out.
func Open(path string) (*File, error) {
	f := &File{path: path}
	_, err := f.Look()
	return f, err
}

// Look reads the file if it is another one than before, and tells whether it was. What cannot be read leaves everything as it was.
func (f *File) Look() (changed bool, err error) {
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
	var next trust.Refused
	if err == nil {
		err = json.Unmarshal(text, &next)
	}
	if err != nil {
		return false, fmt.Errorf("revoked certificates: %w", err)
	}
	f.stamp, f.now = stamp, next
	return true, nil
}

// Now is what it says.
func (f *File) Now() trust.Refused {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Follow looks at the file until ctx is done, and calls changed when it is another one.
func (f *File) Follow(ctx context.Context, changed func()) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for told := ""; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		switch news, err := f.Look(); {
		case err == nil:
			told = ""
			if news {
				changed()
			}
		case told != err.Error():
			told = err.Error()
			klog.ErrorS(err, "Revoked certificates")
		}
	}
}

// Refusal is why a request's certificate counts no more; nil for one that counts, and for a request without one.
func (f *File) Refusal(request *http.Request) error {
	cert := Certificate(request)
	if cert == nil {
		return nil
	}
	return f.Now().Why(cert)
}

// Certificate is what the caller has shown; nil if that is nothing. Whether it is good is for the authenticator to say.
func Certificate(request *http.Request) *x509.Certificate {
	if request.TLS == nil || len(request.TLS.PeerCertificates) == 0 {
		return nil
	}
	return request.TLS.PeerCertificates[0]
}

// Guard stands around an authenticator: with a certificate that counts no more nobody is anybody, whatever else he shows. What the authenticator
// remembers of earlier requests makes no difference.
func (f *File) Guard(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(request *http.Request) (*authenticator.Response, bool, error) {
		if err := f.Refusal(request); err != nil {
			return nil, false, err
		}
		return next.AuthenticateRequest(request)
	})
}

package redfish

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/orlop-os/orlop/pkg/machineprovider"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Bounds of the communication with a controller.
const (
	// defaultTimeout limits an operation, and requestTimeout limits each request of an operation.
	defaultTimeout = 2 * time.Minute
	requestTimeout = 30 * time.Second
	maxAnswer      = 4 << 20 // bytes
	maxRequests    = 64      // requests of an operation
	maxRedirects   = 3
	maxText        = 300 // characters of a text from the controller
)

// Config is the address of a controller and the credentials for it.
type Config struct {
	// Name is the name of the machine in errors. If it is empty, the host of Endpoint is the name.
	Name string
	// Endpoint is https://HOST or https://HOST:PORT.
	Endpoint string
	// System is the ID of the system: the last part of its path. It may be empty if the controller
	// has a single system.
	System         string
	User, Password string
	// Fingerprint (sha256:…) is the fingerprint of the key of the controller. CA (PEM) is the
	// certificate that has signed the certificate of the controller. Exactly one of the fields
	// Fingerprint and CA must be set.
	Fingerprint string
	CA          []byte
	// Timeout is the time limit of an operation; 0 means 2 minutes.
	Timeout time.Duration
}

// Machine implements machineprovider.Machine for a machine with a controller.
type Machine struct {
	config    Config
	host      string // host of Endpoint, with its port
	transport *http.Transport
}

var (
	_ machineprovider.Machine     = (*Machine)(nil)
	_ machineprovider.PowerReader = (*Machine)(nil)
)

// New returns the machine of a configuration. It makes no request. For an invalid configuration it
// returns an error of kind Invalid.
func New(c Config) (*Machine, error) {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, invalid(cmp.Or(c.Name, "?"), "the endpoint is not https://HOST or https://HOST:PORT", "correct the address of the controller", nil)
	}
	c.Name, c.Timeout, c.Endpoint = cmp.Or(c.Name, u.Hostname()), cmp.Or(c.Timeout, defaultTimeout), "https://"+u.Host
	if c.User == "" || c.Password == "" {
		return nil, invalid(c.Name, "the user or the password is empty", "set both", nil)
	}
	trust, err := trusted(c)
	if err != nil {
		return nil, invalid(c.Name, err.Error(), "set the fingerprint of the controller's key, or the CA of its certificate", err)
	}
	return &Machine{config: c, host: u.Host, transport: &http.Transport{
		TLSClientConfig: trust, TLSHandshakeTimeout: requestTimeout, ResponseHeaderTimeout: requestTimeout,
		MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: requestTimeout, // without a proxy
	}}, nil
}

func invalid(name, reason, remedy string, err error) error {
	return &machineprovider.Error{Kind: machineprovider.Invalid, Machine: name, Operation: "use the configuration of its controller", Reason: reason, Remedy: remedy, Err: err}
}

// errUntrusted is the cause of an error if the key of the controller has another fingerprint.
var errUntrusted = errors.New("the controller has another key")

// trusted returns a TLS configuration that accepts only the configured controller.
func trusted(c Config) (*tls.Config, error) {
	if (c.Fingerprint == "") == (len(c.CA) == 0) {
		return nil, errors.New("expected either a fingerprint or a CA")
	}
	if c.Fingerprint == "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("the CA is no certificate in PEM")
		}
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, nil
	}
	want, err := pki.ParseFingerprint(c.Fingerprint)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		if got := pki.Fingerprint(s.PeerCertificates[0]); got != want {
			return fmt.Errorf("%w: %s, expected %s", errUntrusted, got, want)
		}
		return nil
	}}, nil
}

// client returns an HTTP client for a single operation. Its guard counts the requests of the
// operation.
func (m *Machine) client() *http.Client {
	guard := &guard{host: m.host, next: m.transport}
	return &http.Client{Transport: guard, Timeout: requestTimeout, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("the controller redirects more than %d times", maxRedirects)
		}
		return nil // guard checks the host
	}}
}

// guard limits the number of requests of an operation and the size of each answer. It rejects a
// request to another host, because a link or a redirect of the controller can name any address.
type guard struct {
	host string
	next http.RoundTripper
	made atomic.Int32
}

var (
	errOtherHost = errors.New("the controller refers to another host")
	errTooMany   = fmt.Errorf("the operation needs more than %d requests", maxRequests)
)

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" || r.URL.Host != g.host {
		return nil, errOtherHost
	}
	if g.made.Add(1) > maxRequests {
		return nil, errTooMany
	}
	resp, err := g.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	return resp, nil
}

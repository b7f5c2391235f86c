// Package egress connects to servers outside the cluster: through the proxy of the site, if the
// site has one, and with the CAs of the site in addition to the CAs that are configured for a
// server. Every connection of the system to such a server must use this package; a test of the
// module finds connections that do not (egress_test.go).
//
// The caller selects the CAs for a server. The package stores nothing, and does not read the
// configuration of the machine (machined/nodeplan does).
package egress

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"golang.org/x/net/http/httpproxy"
)

// Config states how servers outside the cluster are reached. The zero value means direct
// connections and no CAs of the site. A Config can contain a password: use its JSON form only as
// the input of a command. Package fmt prints only the host of the proxy.
type Config struct {
	// Proxy is the URL of an HTTP proxy, http or https, with user and password; empty for none.
	Proxy string `json:"proxy,omitempty"`
	// NoProxy lists the hosts that are reached directly, separated by commas, in the form of
	// httpproxy.Config: addresses, networks and names. A name includes the names below it. Names
	// and addresses can have a port.
	NoProxy string `json:"noProxy,omitempty"`
	// CAs are the CAs of the site, in PEM; empty for none.
	CAs string `json:"cas,omitempty"`
}

// Format prints the configuration without its password.
func (c Config) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, c.text()) }

// LogValue returns the text of Format.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.text()) }

func (c Config) text() string {
	if c.Proxy == "" {
		return "direct"
	}
	u, err := c.proxy()
	if err != nil {
		return "by an invalid proxy"
	}
	return "by " + name(u)
}

// name returns the URL of a proxy for messages, without user and password.
func name(u *url.URL) string { return u.Scheme + "://" + u.Host }

// proxy returns the URL of the proxy. An invalid URL is an error and not a direct connection.
func (c Config) proxy() (*url.URL, error) {
	u, err := url.Parse(c.Proxy)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// The error omits the URL, because it can contain a password.
		return nil, errors.New("the URL of the proxy is invalid")
	}
	return u, nil
}

// ProxyFor returns the proxy for a URL; nil if the host is reached directly. Loopback addresses and
// the name localhost are always reached directly.
func (c Config) ProxyFor(target *url.URL) (*url.URL, error) {
	if c.Proxy == "" {
		return nil, nil
	}
	if _, err := c.proxy(); err != nil {
		return nil, err
	}
	return (&httpproxy.Config{HTTPProxy: c.Proxy, HTTPSProxy: c.Proxy, NoProxy: c.NoProxy}).ProxyFunc()(target)
}

// Roots returns the CAs for a server: the CAs that are configured for the server (own, in PEM; can
// be empty), the CAs of the site and, if public is true, the public CAs of the system. It returns
// an error if no CA is given and public is false, or if own is not empty but contains no
// certificate.
func (c Config) Roots(own string, public bool) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if public {
		if system, err := x509.SystemCertPool(); err == nil { // error: the system has no public CAs
			pool = system
		}
	}
	if own != "" && !pool.AppendCertsFromPEM([]byte(own)) {
		return nil, errors.New("the given CA contains no certificate")
	}
	if c.CAs != "" && !pool.AppendCertsFromPEM([]byte(c.CAs)) {
		return nil, errors.New("the CAs of the site contain no certificate")
	}
	if own == "" && c.CAs == "" && !public {
		return nil, errors.New("no CA is given for the server, and public CAs are not trusted here")
	}
	return pool, nil
}

// Complete sets the proxy and the TLS configuration of a transport. roots are from Roots; nil for a
// server without TLS.
func (c Config) Complete(t *http.Transport, roots *x509.CertPool) error {
	if roots == nil { // the proxy itself can have TLS
		var err error
		if roots, err = c.Roots("", true); err != nil {
			return err
		}
	}
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if c.Proxy != "" {
		t.Proxy = func(r *http.Request) (*url.URL, error) { return c.ProxyFor(r.URL) }
	}
	return nil
}

package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Egress configures how the machine reaches servers outside the cluster: registries, receivers of
// logs, the store of snapshots, issuers of tokens and webhooks of the API server.
type Egress struct {
	Proxy *Proxy `yaml:"proxy,omitempty"`
	// CA are CAs that the machine trusts for every such server, in addition to the CAs in the
	// settings of the server.
	CA Bundle `yaml:"ca,omitempty"`
}

// Proxy is the HTTP proxy by which the machine reaches these servers.
type Proxy struct {
	URL      ProxyURL      `yaml:"url" jsonschema:"required"`
	Username string        `yaml:"username,omitempty"`
	Password Secret        `yaml:"password,omitempty"`
	NoProxy  []DirectHosts `yaml:"noProxy,omitempty"`
}

// ProxyURL is the URL of a proxy, which consists of a scheme, a host and a port. The zero value
// means no proxy.
type ProxyURL struct {
	TLS bool // the scheme is https
	HostPort
}

const wantProxyURL = "http://host:port or https://host:port, such as http://proxy.example.com:3128"

// UnmarshalText parses the URL. Its errors do not contain the text, because the text can contain a
// password.
func (p *ProxyURL) UnmarshalText(text []byte) error {
	u, err := url.Parse(string(text))
	bad := &wrong{reason: "not the URL of a proxy", expected: wantProxyURL}
	switch {
	case err != nil || u.Host == "":
		if new(HostPort).UnmarshalText(text) == nil {
			bad.nearest = "http://" + string(text)
		}
		return bad
	case u.Scheme != "http" && u.Scheme != "https":
		bad.reason = fmt.Sprintf("the scheme is %s", quote(u.Scheme))
		return bad
	case u.User != nil:
		bad.reason, bad.hint = "it contains a user", "set username and password"
		return bad
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(string(text), "#") || u.Path != "" && u.Path != "/":
		bad.reason = "it contains more than a host and a port"
		return bad
	case u.Port() == "":
		bad.reason = "the port is missing"
		return bad
	}
	var at HostPort
	if err := at.UnmarshalText([]byte(net.JoinHostPort(u.Hostname(), u.Port()))); err != nil {
		bad.reason = err.(*wrong).reason // HostPort returns no other error
		return bad
	}
	*p = ProxyURL{TLS: u.Scheme == "https", HostPort: at}
	return nil
}

// String returns the URL.
func (p ProxyURL) String() string {
	switch {
	case p == (ProxyURL{}):
		return ""
	case p.TLS:
		return "https://" + p.HostPort.String()
	}
	return "http://" + p.HostPort.String()
}

// MarshalText returns String.
func (p ProxyURL) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// DirectHosts are hosts that the machine reaches without the proxy: a name and all names below it
// (example.com), only the names below a domain (.example.com), an address, or a network. All but a
// network can have a port.
type DirectHosts string

const wantDirectHosts = "a name, a domain with a dot before it, an IP address or a network, such as example.com, .example.com, 10.0.0.7 or 10.0.0.0/8"

// UnmarshalText parses an entry.
func (d *DirectHosts) UnmarshalText(text []byte) error {
	s := strings.ToLower(string(text))
	if err := directHosts(s); err != nil {
		w := &wrong{reason: fmt.Sprintf("%s %v", quote(s), err), expected: wantDirectHosts}
		if rest, star := strings.CutPrefix(s, "*."); star && hostname(rest) == nil {
			w.nearest = "." + rest
		}
		return w
	}
	*d = DirectHosts(s)
	return nil
}

// MarshalText returns the text.
func (d DirectHosts) MarshalText() ([]byte, error) { return []byte(d), nil }

// directHosts returns an error for an invalid entry. It also rejects texts with a special meaning
// in the library's list of hosts: "*", which disables the proxy, and spaces and commas, which
// separate entries.
func directHosts(s string) error {
	if strings.ContainsRune(s, '/') {
		n, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			return fmt.Errorf("is not a network")
		case n != n.Masked():
			return fmt.Errorf("is an address in the network %s", n.Masked())
		}
		return nil
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return hostOrAddr(s)
	}
	host := s
	if h, port, err := net.SplitHostPort(s); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("has the port %s, which is not in 1 to 65535", quote(port))
		}
		host = h
	}
	return hostOrAddr(strings.TrimPrefix(host, "."))
}

// maxDirectHosts is the maximum number of entries. The number is limited because each connection
// compares its host with all entries.
const maxDirectHosts = 64

// egress validates the settings for the access to servers outside the cluster.
func (v machineValidator) egress(path string, e *Egress) {
	v.bundle(path+".ca", e.CA)
	p := e.Proxy
	if p == nil {
		return
	}
	path += ".proxy"
	if a, err := netip.ParseAddr(p.URL.Host); err == nil {
		if w := serverProblem(a); w != nil {
			w.expected = "the address of a proxy"
			v.on(path+".url", *w)
		}
	}
	switch {
	case p.URL.TLS && e.CA.IsZero() && !v.broken[path[:strings.LastIndexByte(path, '.')]+".ca"]:
		v.on(path+".url", wrong{reason: "the CA of the proxy's certificate is missing", expected: "the CA in Machine.spec.egress.ca"})
	case (p.Username == "") != p.Password.IsZero() && !v.broken[path+".password"]:
		v.on(path, wrong{reason: "has only one of username and password", expected: "both or neither"})
	case strings.Contains(p.Username, ":"):
		v.on(path+".username", wrong{reason: "has a colon", expected: "a name without one (RFC 7617)"})
	}
	if len(p.NoProxy) > maxDirectHosts {
		v.on(path+".noProxy", wrong{reason: fmt.Sprintf("%d entries", len(p.NoProxy)), expected: fmt.Sprintf("at most %d", maxDirectHosts)})
	}
	for i, one := range p.NoProxy {
		if slices.Contains(p.NoProxy[:i], one) && one != "" {
			v.on(fmt.Sprintf("%s.noProxy[%d]", path, i), wrong{reason: quote(string(one)) + " is given twice", expected: "each once"})
		}
	}
}

package apid

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/admission/joinrequest"
	"github.com/orlop-os/orlop/pkg/admission/pairing"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/trust"
)

// The files in Options.Dir. machined replaces each file by rename, so apid never reads a partly
// written file.
const (
	// PEM: the certificate of the machine, followed by the CAs that issued it, if they are
	// intermediate
	ServerCertFile = "server.crt"
	ServerKeyFile  = "server.key" // PEM
	// PEM: the CAs of the operators; empty on an unclaimed machine
	OperatorCAsFile = "operator-cas.pem"
	// PEM: the CAs with which machines issue certificates to operators; may be empty
	ClientCAsFile = "client-cas.pem"
	// PEM: the CAs of the machines of the cluster; they can give at most ROLE_MACHINE; may be empty
	MachineCAsFile = "machine-cas.pem"
	RevokedFile    = "revoked.json" // JSON: a list of trust.Revocation; may be empty
	// not empty if the configuration permits join requests of machines without a ticket (package
	// joinrequest)
	JoinRequestsFile = "join-requests"
	// not empty if the configuration permits inventories of machines without a configuration
	// (package inventory)
	InventoryFile = "inventory"
)

// files lists the names of all files above.
var files = []string{ServerCertFile, ServerKeyFile, OperatorCAsFile, ClientCAsFile, MachineCAsFile, RevokedFile, JoinRequestsFile, InventoryFile}

var errNoLongerTrusted = errors.New("the CA that signed your certificate is no longer trusted by this machine")

// trusted is the parsed content of the files at one time. It is immutable.
type trusted struct {
	server tls.Certificate
	cas    *x509.CertPool // all CAs that roots contains
	// the highest role that each CA can give, by the SHA-256 of its certificate
	roots map[[sha256.Size]byte]api.Role
	// refused has the revocations, which apply to the certificates of all CAs. Its TrustedRoots are
	// the CAs that can give every role.
	refused trust.RevokedSet
	// unclaimed means that the machine has no operator yet. A connection then permits only pairing.
	unclaimed bool
	// joinRequests means that machines without a ticket may send join requests.
	joinRequests bool
	// inventory means that machines without a configuration may send their inventory.
	inventory bool
}

// store has the credentials of the files. It reloads changed files, and ends the calls of clients
// that are no longer trusted.
type store struct {
	dir string

	mu      sync.Mutex
	stamp   string // of the files at the last check (safefile.StampAll)
	current *trusted
	// error of load for the files with this stamp, or nil; after an error, current stays in use
	failure error
	watched map[*watched]bool // active calls and open connections
}

// watched is a call or a connection that must end when its client certificate becomes invalid. The
// store then calls the function end with the reason, possibly more than once.
type watched struct {
	chain []*x509.Certificate
	end   func(why error)
}

func newStore(dir string) *store {
	return &store{dir: dir, watched: map[*watched]bool{}}
}

// get returns the current credentials. It reads the files only if their stamps have changed, so
// each handshake and each call can use it. If the new files are invalid, the previous credentials
// stay in use. get returns an error if no valid files were ever read.
func (s *store) get() (*trusted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp, err := safefile.StampAll(s.dir, files)
	if err != nil {
		// The empty stamp differs from every stamp, so complete files are loaded at the next call.
		s.stamp, s.failure = "", fmt.Errorf("credentials: cannot find: %w", err)
		if s.current == nil {
			return nil, s.failure
		}
		return s.current, nil
	}
	if stamp != s.stamp {
		fresh, err := load(s.dir)
		s.stamp, s.failure = stamp, err
		if err == nil {
			s.current = fresh
			s.endUntrustedLocked()
		}
	}
	if s.current == nil {
		return nil, s.failure
	}
	return s.current, nil
}

// problem returns the error of the newest files; nil if they are in use.
func (s *store) problem() error {
	if _, err := s.get(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// registerCall registers a call. The returned context ends when the client's certificate expires or
// is revoked, or when its CA is removed. role is the current role of the verified chain. The caller
// must call release at the end of the call.
func (s *store) registerCall(ctx context.Context, chain []*x509.Certificate) (held context.Context, role api.Role, release func(), err error) {
	current, err := s.get()
	if err != nil {
		return nil, role, nil, err
	}
	if role, err = current.role(chain); err != nil {
		return nil, role, nil, err
	}
	expiry := chain[0].NotAfter
	if !time.Now().Before(expiry) {
		return nil, role, nil, errExpired(expiry)
	}
	// held gets no deadline: gRPC would send the deadline to machined, and machined would end the
	// call with its own error
	held, end := context.WithCancelCause(ctx)
	forget := s.watch(chain, end)
	return held, role, func() {
		forget()
		end(nil)
	}, nil
}

// registerConn registers a connection. When the client's certificate becomes invalid, it waits for
// revokedGracePeriod, so the calls of the client get the error first. Then it calls closeConn,
// which closes the connection. Otherwise the connection could stay open, because each call, even a
// rejected call, resets the idle timer. While the list of revocations is lost, the connection stays
// open, and each call gets the reason. The caller must call forget when the connection is closed.
func (s *store) registerConn(chain []*x509.Certificate, closeConn func()) (forget func()) {
	closeLater := sync.OnceFunc(func() { time.AfterFunc(revokedGracePeriod, closeConn) })
	return s.watch(chain, func(why error) {
		if !errors.Is(why, trust.ErrRevocationsLost) {
			closeLater()
		}
	})
}

// watch calls the function end when a verified chain becomes invalid. The returned function forget
// stops the watch.
func (s *store) watch(chain []*x509.Certificate, end func(why error)) (forget func()) {
	w := &watched{chain, end}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched[w] = true
	// The chain is checked again here, because the credentials can have changed after its
	// verification and before this registration.
	if _, err := s.current.role(chain); err != nil {
		end(err)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watched, w)
	}
}

// endExpired ends the calls and connections with a certificate that has expired at the time now. It
// uses the wall clock, so it also works after the clock was set.
func (s *store) endExpired(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watched {
		if expiry := w.chain[0].NotAfter; !now.Before(expiry) {
			w.end(errExpired(expiry))
		}
	}
}

func errExpired(at time.Time) error {
	return fmt.Errorf("your certificate expired at %s; create a new one", at.UTC().Format(time.RFC3339))
}

// role returns the current role of a verified chain, whose last certificate is the CA. It returns
// an error if the CA is not trusted any more or the client's certificate is revoked.
func (t *trusted) role(chain []*x509.Certificate) (api.Role, error) {
	maxRole, known := t.roots[sha256.Sum256(chain[len(chain)-1].Raw)]
	if !known {
		return api.Role_ROLE_UNSPECIFIED, errNoLongerTrusted
	}
	switch err := t.refused.Check(chain[0]); {
	// a renewed certificate is trusted only while the CA of the original certificate is trusted
	case errors.Is(err, trust.ErrUntrustedRoot):
		return api.Role_ROLE_UNSPECIFIED, errNoLongerTrusted
	case err != nil:
		return api.Role_ROLE_UNSPECIFIED, err
	}
	return roleOf(chain[0], maxRole), nil
}

// isMachine reports whether a verified chain has the role ROLE_MACHINE.
func (s *store) isMachine(chain []*x509.Certificate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	role, err := s.current.role(chain)
	return err == nil && role == api.Role_ROLE_MACHINE
}

// endUntrustedLocked ends the calls and connections that the current credentials do not permit.
func (s *store) endUntrustedLocked() {
	for w := range s.watched {
		if _, err := s.current.role(w.chain); err != nil {
			w.end(err)
		}
	}
}

// load reads and parses the files. It returns an error if a file is missing or invalid.
func load(dir string) (*trusted, error) {
	texts, err := safefile.ReadAll(dir, files)
	if err != nil {
		return nil, fmt.Errorf("credentials: cannot read: %w", err)
	}
	server, err := tls.X509KeyPair(texts[ServerCertFile], texts[ServerKeyFile])
	if err != nil {
		return nil, fmt.Errorf("credentials: cannot use %s with %s: %w", ServerCertFile, ServerKeyFile, err)
	}
	fresh := &trusted{server: server, cas: x509.NewCertPool(), roots: map[[sha256.Size]byte]api.Role{}, unclaimed: len(texts[OperatorCAsFile]) == 0}
	fresh.joinRequests = !fresh.unclaimed && len(texts[JoinRequestsFile]) > 0
	fresh.inventory = !fresh.unclaimed && len(texts[InventoryFile]) > 0
	for _, f := range []struct {
		name    string
		maxRole api.Role
	}{{OperatorCAsFile, api.Role_ROLE_ADMIN}, {ClientCAsFile, api.Role_ROLE_ADMIN}, {MachineCAsFile, api.Role_ROLE_MACHINE}} {
		if len(texts[f.name]) == 0 || fresh.unclaimed { // an unclaimed machine trusts no client
			continue
		}
		if err := fresh.add(f.name, texts[f.name], f.maxRole); err != nil {
			return nil, err
		}
	}
	if text := texts[RevokedFile]; len(text) > 0 {
		if err := json.Unmarshal(text, &fresh.refused.Revoked); err != nil {
			return nil, fmt.Errorf("credentials: cannot use %s: %w", RevokedFile, err)
		}
	}
	return fresh, nil
}

// add trusts the CAs in a file. Their certificates can give roles up to maxRole.
func (t *trusted) add(name string, text []byte, maxRole api.Role) error {
	cas, err := pki.ParseCerts(text)
	if err != nil {
		return fmt.Errorf("credentials: cannot use %s: %w", name, err)
	}
	for _, ca := range cas {
		if !ca.IsCA {
			return fmt.Errorf("credentials: cannot use %s: %q is not a certificate authority", name, ca.Subject.CommonName)
		}
		t.cas.AddCert(ca)
		root := sha256.Sum256(ca.Raw)
		t.roots[root] = max(t.roots[root], maxRole)
		if maxRole == api.Role_ROLE_ADMIN {
			t.refused.TrustedRoots = append(t.refused.TrustedRoots, pki.Fingerprint(ca))
		}
	}
	return nil
}

// tlsConfig requires TLS 1.3 and a client certificate of a trusted CA. Three kinds of connections
// need no certificate: pairing while the machine is unclaimed, and join requests and inventories if
// the configuration permits them. serverCredentials serves them and ends them before any call.
func (s *store) tlsConfig() *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert,
		// An empty pool trusts no CA; a nil pool would trust the CAs of the system.
		ClientCAs: x509.NewCertPool(),
		// a session ticket would admit a client without verification of its certificate
		SessionTicketsDisabled: true,
	}
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		current, err := s.get()
		if err != nil {
			return nil, err
		}
		config := base.Clone()
		config.GetConfigForClient = nil
		config.Certificates = []tls.Certificate{current.server}
		config.ClientCAs = current.cas
		config.VerifyConnection = func(state tls.ConnectionState) error {
			if len(state.VerifiedChains) == 0 {
				return nil // a connection for pairing, a join request or an inventory (see below)
			}
			_, err := current.role(state.VerifiedChains[0])
			if errors.Is(err, trust.ErrRevocationsLost) {
				// The handshake succeeds, and each call returns the exact reason. TLS has a single
				// alert for all errors of this kind, and this alert would say that the certificate
				// is revoked.
				return nil
			}
			return err
		}
		if current.unclaimed && slices.Contains(hello.SupportedProtos, pairing.Protocol) {
			// The protocol of pairing is selected even if the client also offers "h2", because gRPC
			// adds "h2" only at the end of the list.
			config.NextProtos, config.ClientAuth = []string{pairing.Protocol}, tls.NoClientCert
		}
		if current.joinRequests && slices.Equal(hello.SupportedProtos, []string{joinrequest.Protocol}) {
			config.NextProtos, config.ClientAuth = []string{joinrequest.Protocol}, tls.NoClientCert
		}
		if current.inventory && slices.Equal(hello.SupportedProtos, []string{inventory.Protocol}) {
			config.NextProtos, config.ClientAuth = []string{inventory.Protocol}, tls.NoClientCert
		}
		return config, nil
	}
	return base
}

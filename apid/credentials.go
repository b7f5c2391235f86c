package apid

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/joinrequest"
	"github.com/orlop-os/orlop/pkg/pairing"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// The files in Options.Dir. machined replaces them by rename, so that each is whole at any moment.
const (
	// PEM, the machine's certificate, followed by its issuers if there are any
	ServerCertFile = "server.crt"
	ServerKeyFile  = "server.key" // PEM
	// PEM, the CAs whose certificates may call; empty on a machine that belongs to nobody yet
	OperatorCAsFile = "operators.pem"
	// PEM, the CAs of the certificates that the machines issue to operators; may be empty
	ClientCAsFile = "clients.pem"
	// PEM, the CAs of the cluster's machines, whose certificates give no more than ROLE_MACHINE;
	// may be empty
	MachineCAsFile = "machines.pem"
	RevokedFile    = "revoked.json" // JSON, a list of trust.Revocation; may be empty
	// not empty where machines without a ticket may ask to be let in (package joinrequest)
	JoinRequestsFile = "asking"
)

// files are all of them.
var files = []string{ServerCertFile, ServerKeyFile, OperatorCAsFile, ClientCAsFile, MachineCAsFile, RevokedFile, JoinRequestsFile}

var errNoLongerTrusted = errors.New("the CA that signed your certificate is no longer trusted by this machine")

// trusted is the content of the files at one moment; it never changes.
type trusted struct {
	server tls.Certificate
	cas    *x509.CertPool // all of roots
	// the most that a CA can give, by the hash of the whole certificate
	roots map[[sha256.Size]byte]api.Role
	// refused certificates count no more, whichever CA has signed them. Its roots are those that
	// can give every role.
	refused trust.RevokedSet
	// unowned: there is no operator. Connections are for pairing with one, and for nothing else.
	unowned bool
	// asking: machines without a ticket may ask to be let into the cluster.
	asking bool
}

// store keeps the credentials up to date with the files, and ends calls whose caller is no longer
// trusted.
type store struct {
	dir string

	mu      sync.Mutex
	stamp   string // of the files as last looked at
	current *trusted
	// why the files of that stamp could not be used; the credentials before them stay in use
	failure error
	watched map[*watched]bool // the calls going on, and the connections that are open
}

// watched is what goes on for as long as its client counts. end is told why it does not any more,
// perhaps more than once.
type watched struct {
	chain []*x509.Certificate
	end   func(why error)
}

func newStore(dir string) *store {
	return &store{dir: dir, watched: map[*watched]bool{}}
}

// get returns the present credentials. It looks at the files' times and reads them only when those
// have changed, so it is cheap enough for every handshake and every call. When new files cannot be
// used, the old ones stay in use.
func (s *store) get() (*trusted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp, err := stampOf(s.dir)
	if err != nil {
		if s.current == nil {
			return nil, err
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

// problem tells why the newest files are not in use, or nil.
func (s *store) problem() error {
	if _, err := s.get(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// hold watches over a call: its context ends when the client's certificate expires or its CA is
// removed. role is what the chain, which was verified, gives its holder now. The caller must call
// release at the end of the call.
func (s *store) hold(ctx context.Context, chain []*x509.Certificate) (held context.Context, role api.Role, release func(), err error) {
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
	// no deadline: that would be told to machined, which would then end the call in its own words
	held, end := context.WithCancelCause(ctx)
	forget := s.watch(chain, end)
	return held, role, func() {
		forget()
		end(nil)
	}, nil
}

// keep watches over a connection: it is closed when the client's certificate expires or its CA is
// removed, partTime after its calls were told so. Without calls nobody else would: each new one,
// also one that is refused, keeps it open. While the list of revocations is lost, each call is told
// so instead. forget is to be called when it is closed.
func (s *store) keep(chain []*x509.Certificate, closes func()) (forget func()) {
	part := sync.OnceFunc(func() { time.AfterFunc(partTime, closes) })
	return s.watch(chain, func(why error) {
		if !errors.Is(why, trust.ErrRevocationsLost) {
			part()
		}
	})
}

// watch has end told when a chain, which was verified, counts no more, until forget is called.
func (s *store) watch(chain []*x509.Certificate, end func(why error)) (forget func()) {
	w := &watched{chain, end}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched[w] = true
	// Nobody has been told of what has changed since the chain was verified: it was not among them
	// yet.
	if _, err := s.current.role(chain); err != nil {
		end(err)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watched, w)
	}
}

// endExpired ends the calls and connections of those whose certificate has expired by a clock that
// may have been set meanwhile.
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
	return fmt.Errorf("your certificate expired at %s; make a new one", at.UTC().Format(time.RFC3339))
}

// role is what a chain that was verified gives its holder, or why nothing any more.
func (t *trusted) role(chain []*x509.Certificate) (api.Role, error) {
	most, known := t.roots[sha256.Sum256(chain[len(chain)-1].Raw)]
	if !known {
		return api.Role_ROLE_UNSPECIFIED, errNoLongerTrusted
	}
	switch err := t.refused.Check(chain[0]); {
	// who is removed with his CA does not stay by having renewed
	case errors.Is(err, trust.ErrUntrustedRoot):
		return api.Role_ROLE_UNSPECIFIED, errNoLongerTrusted
	case err != nil:
		return api.Role_ROLE_UNSPECIFIED, err
	}
	return roleOf(chain[0], most), nil
}

// isMachine tells whether a chain that was verified is of a machine of the cluster, and gives it
// nothing more.
func (s *store) isMachine(chain []*x509.Certificate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	role, err := s.current.role(chain)
	return err == nil && role == api.Role_ROLE_MACHINE
}

func (s *store) endUntrustedLocked() {
	for w := range s.watched {
		if _, err := s.current.role(w.chain); err != nil {
			w.end(err)
		}
	}
}

// stampOf is a text that changes whenever one of the files does.
func stampOf(dir string) (string, error) {
	stamp := ""
	for _, name := range files {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("credentials: cannot find: %w", err)
		}
		stamp += durable.Stamp(info) + "/"
	}
	return stamp, nil
}

func load(dir string) (*trusted, error) {
	texts := map[string][]byte{}
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("credentials: cannot read: %w", err)
		}
		texts[name] = text
	}
	server, err := tls.X509KeyPair(texts[ServerCertFile], texts[ServerKeyFile])
	if err != nil {
		return nil, fmt.Errorf("credentials: cannot use %s with %s: %w", ServerCertFile, ServerKeyFile, err)
	}
	fresh := &trusted{server: server, cas: x509.NewCertPool(), roots: map[[sha256.Size]byte]api.Role{}, unowned: len(texts[OperatorCAsFile]) == 0}
	fresh.asking = !fresh.unowned && len(texts[JoinRequestsFile]) > 0
	for _, f := range []struct {
		name string
		most api.Role
	}{{OperatorCAsFile, api.Role_ROLE_ADMIN}, {ClientCAsFile, api.Role_ROLE_ADMIN}, {MachineCAsFile, api.Role_ROLE_MACHINE}} {
		if len(texts[f.name]) == 0 || fresh.unowned { // who belongs to nobody lets nobody in
			continue
		}
		if err := fresh.add(f.name, texts[f.name], f.most); err != nil {
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

// add trusts the CAs of a file, to give a role and none above it.
func (t *trusted) add(name string, text []byte, most api.Role) error {
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
		t.roots[root] = max(t.roots[root], most)
		if most == api.Role_ROLE_ADMIN {
			t.refused.TrustedRoots = append(t.refused.TrustedRoots, pki.Fingerprint(ca))
		}
	}
	return nil
}

// tlsConfig demands TLS 1.3 and a client certificate of one of the CAs. Only a connection for
// pairing needs none, while there is no operator, and one of a machine that asks to be let in,
// where it may; they come to an end before a call could be made (door).
func (s *store) tlsConfig() *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert,
		// An empty pool trusts nobody; a nil one would trust the system's CAs.
		ClientCAs: x509.NewCertPool(),
		// a ticket would let a client in again without its certificate being verified
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
				return nil // for one of the two, see below
			}
			_, err := current.role(state.VerifiedChains[0])
			if errors.Is(err, trust.ErrRevocationsLost) {
				// TLS has one alert for everything, which says that it was revoked; each call is
				// told what it is
				return nil
			}
			return err
		}
		if current.unowned && slices.Contains(hello.SupportedProtos, pairing.Protocol) {
			// Where the client offers "h2" too, which gRPC adds to this list, the first one is
			// taken.
			config.NextProtos, config.ClientAuth = []string{pairing.Protocol}, tls.NoClientCert
		}
		if current.asking && slices.Equal(hello.SupportedProtos, []string{joinrequest.Protocol}) {
			config.NextProtos, config.ClientAuth = []string{joinrequest.Protocol}, tls.NoClientCert
		}
		return config, nil
	}
	return base
}

package membership

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/orlop-os/orlop/machined/membership/workerjoin"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Certificates are the certificates of a member. The value is always replaced as a whole.
type Certificates struct {
	Machine   *pki.Leaf
	Node      nodespec.IssuedCerts
	addresses []netip.Addr // addresses of the machine at the time of the request
}

func (h Certificates) certificates() workerjoin.Certificates {
	if h.Machine == nil {
		return workerjoin.Certificates{}
	}
	out := workerjoin.Certificates{Machine: h.Machine.Cert, Addresses: h.addresses}
	for _, l := range h.Node {
		out.Node = append(out.Node, l.Cert)
	}
	return out
}

// storedCertificates is Certificates on STATE. The machine key is in a file of its own.
type storedCertificates struct {
	Machine   string                       `json:"machine"` // PEM
	Node      map[string]storedCertificate `json:"node"`
	Addresses []netip.Addr                 `json:"addresses"`
}

type storedCertificate struct {
	Cert string `json:"cert"` // PEM
	Key  string `json:"key"`  // PEM
}

// readCertificates reads the stored certificates; the zero value if the file does not exist.
func readCertificates(file string, identity *ecdsa.PrivateKey) (Certificates, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Certificates{}, nil
	}
	var s storedCertificates
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	h := Certificates{Node: nodespec.IssuedCerts{}, addresses: s.Addresses}
	if err == nil {
		h.Machine, err = pki.ParseLeaf([]byte(s.Machine), pki.EncodeKey(identity))
	}
	for name, l := range s.Node {
		if err == nil {
			h.Node[name], err = pki.ParseLeaf([]byte(l.Cert), []byte(l.Key))
		}
	}
	if err != nil {
		return Certificates{}, fmt.Errorf("membership: %s cannot be used: %w", file, err)
	}
	return h, nil
}

func (h Certificates) store(file string) error {
	s := storedCertificates{Machine: string(h.Machine.CertPEM()), Node: map[string]storedCertificate{}, Addresses: h.addresses}
	for name, l := range h.Node {
		s.Node[name] = storedCertificate{string(l.CertPEM()), string(l.KeyPEM())}
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = safefile.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("membership: cannot store the certificates: %w", err)
	}
	return nil
}

// add stores the signed certificates beside their keys after it has verified them.
func (h Certificates) add(answer *api.JoinResponse, c *config.Config) error {
	read := func(l *pki.Leaf, der []byte, cas []*x509.Certificate) (err error) {
		if l.Cert, err = x509.ParseCertificate(der); err != nil {
			return err
		}
		if !pki.Matches(l.Cert, l.Key) {
			return errors.New("it is for another key")
		}
		if !pki.SignedBy(l.Cert, cas...) {
			return errors.New("it belongs to another cluster")
		}
		return nil
	}
	if err := read(h.Machine, answer.MachineCertificate, machineCAs(c)); err != nil {
		return fmt.Errorf("membership: the machine's certificate cannot be used: %w", err)
	}
	for name, l := range h.Node {
		if err := read(l, answer.NodeCertificates[name], nodeCAs(c)); err != nil {
			return fmt.Errorf("membership: %s cannot be used: %w", name, err)
		}
	}
	return nil
}

// machineCAs and nodeCAs are the machine CA and the Kubernetes CA: the issuing CA first, then the
// accepted CAs.
func machineCAs(c *config.Config) []*x509.Certificate {
	return allCAs(c.Cluster.Spec.PKI.Machine.Cert, c.Cluster.Spec.PKI.Accepted.Machine)
}

func nodeCAs(c *config.Config) []*x509.Certificate {
	return allCAs(c.Cluster.Spec.PKI.Kubernetes.Cert, c.Cluster.Spec.PKI.Accepted.Kubernetes)
}

func allCAs(issuing config.Certificate, accepted []config.Certificate) []*x509.Certificate {
	return append([]*x509.Certificate{issuing.X509()}, config.X509s(accepted)...)
}

// MachinePool has the machine CA of a configuration and the accepted CAs, to verify another
// machine.
func MachinePool(c *config.Config) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, ca := range machineCAs(c) {
		pool.AddCert(ca)
	}
	return pool
}

package vm

import (
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/renameio/v2"
	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/vm/redfish"
)

// redfishTTL is the validity period of the certificate of the Redfish service. A start of the
// service replaces an expired certificate.
const redfishTTL = 365 * 24 * time.Hour

// redfishEndpoint is the Redfish service of a runner.
type redfishEndpoint struct {
	server *http.Server
	status RedfishStatus
}

// orOf returns the identity with its empty fields filled in. The values depend only on the names of
// the cluster and the machine, so a client of the Redfish service recognizes the machine after each
// restart.
func (i Identity) orOf(cluster, machine string) Identity {
	id := uuid.NewSHA1(uuid.NameSpaceURL, []byte("orlop:///"+cluster+"/"+machine))
	return Identity{UUID: cmp.Or(i.UUID, id.String()), Serial: cmp.Or(i.Serial, cluster+"-"+machine)}
}

// serveRedfish serves the machines of the cluster in the background, until the server is closed.
func (r *runner) serveRedfish(spec RedfishSpec) (*redfishEndpoint, error) {
	fail := func(err error) (*redfishEndpoint, error) {
		return nil, fmt.Errorf("cluster %s: cannot serve Redfish: %w", r.spec.Name, err)
	}
	leaf, err := redfishIdentity(r.dir, time.Now())
	if err != nil {
		return fail(err)
	}
	password, err := redfishSecret(r.dir)
	if err != nil {
		return fail(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(spec.Port))))
	if err != nil {
		return fail(err)
	}
	e := &redfishEndpoint{status: RedfishStatus{URL: "https://" + listener.Addr().String(), User: cmp.Or(spec.User, "admin"),
		PasswordFile: filepath.Join(r.dir, redfishPassword), Certificate: string(leaf.CertPEM()), Fingerprint: pki.Fingerprint(leaf.Cert)}}
	id := uuid.NewSHA1(uuid.NameSpaceURL, []byte("orlop:///"+r.spec.Name))
	e.server = redfish.New(id.String(), e.status.User, password, r.systems).HTTP()
	e.server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}}}
	go e.server.ServeTLS(listener, "", "") // returns when the runner closes the server
	return e, nil
}

// systems returns the machines in the order of the cluster's specification.
func (r *runner) systems() []redfish.System {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []redfish.System
	for _, spec := range r.spec.Machines {
		if m := r.machines[spec.Name]; m != nil {
			all = append(all, m)
		}
	}
	return all
}

// redfishIdentity returns the certificate in the directory of a cluster, with its key. It replaces
// a certificate that is missing, unreadable or expired.
func redfishIdentity(dir string, now time.Time) (*pki.Leaf, error) {
	certFile, keyFile := filepath.Join(dir, redfishCertificate), filepath.Join(dir, redfishKey)
	cert, certErr := os.ReadFile(certFile)
	key, keyErr := os.ReadFile(keyFile)
	if certErr == nil && keyErr == nil {
		if leaf, err := pki.ParseLeaf(cert, key); err == nil && now.Before(leaf.Cert.NotAfter) {
			return leaf, nil
		}
	}
	leaf, err := pki.SelfSigned(pki.Spec{CN: "redfish", DNS: []string{"localhost"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Usage: pki.Server, TTL: redfishTTL, Now: now})
	if err != nil {
		return nil, err
	}
	if err := renameio.WriteFile(keyFile, leaf.KeyPEM(), 0o600); err != nil {
		return nil, err
	}
	return leaf, renameio.WriteFile(certFile, leaf.CertPEM(), 0o644)
}

// redfishSecret returns the password in the directory of a cluster, and creates a missing password.
func redfishSecret(dir string) (string, error) {
	file := filepath.Join(dir, redfishPassword)
	text, err := os.ReadFile(file)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return string(text), err
	}
	made := rand.Text() // 128 bits or more
	return made, renameio.WriteFile(file, []byte(made), 0o600)
}

package pki

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Organizations (O) of a client certificate. Each gives the holder a role in the management API.
const (
	RolePrefix = "orlop:"
	// The machine CA issues certificates of this role. An operator CA or the client CA issues
	// certificates of the other roles.
	RoleMachine  = RolePrefix + "machine"
	RoleReader   = RolePrefix + "reader"
	RoleOperator = RolePrefix + "operator"
	RoleAdmin    = RolePrefix + "admin"
	// RoleLogReader and the roles below permit a single operation.
	RoleLogReader   = RolePrefix + "log-reader"
	RoleImageImport = RolePrefix + "image-import"
	// RoleJoin is the role of a join ticket, with which a machine joins the cluster. No person has
	// this role.
	RoleJoin       = RolePrefix + "join"
	RoleEtcdBackup = RolePrefix + "etcd-backup"
)

// Roles returns the roles that persons can have, without RolePrefix. The roles reader, operator and
// admin are in ascending order, and the roles for a single operation follow.
func Roles() []string {
	return []string{"reader", "operator", "admin", "log-reader", "image-import", "etcd-backup"}
}

const (
	// CABackdate is the time between NotBefore of a CA and its creation.
	CABackdate = 2 * 365 * 24 * time.Hour
	// LeafBackdate is the time between NotBefore of a leaf and its issuance, without Spec.Backdate.
	// It covers small differences between clocks.
	LeafBackdate = 5 * time.Minute
)

// Usage is the permitted use of a leaf certificate.
type Usage int

// Usages: a TLS client, a TLS server, or a process that is both, for example an etcd member.
const (
	Client Usage = iota + 1
	Server
	Both
)

// CA is a certificate authority. It issues only leaf certificates, and no intermediate CA.
type CA struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// Leaf is a leaf certificate with its private key.
type Leaf struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// Spec describes a leaf certificate.
type Spec struct {
	CN  string       // common name of the subject
	O   []string     // organizations of the subject: groups for Kubernetes, roles for apid
	DNS []string     // DNS names of a server
	IPs []netip.Addr // addresses of a server

	Usage Usage
	TTL   time.Duration // time from Now to NotAfter, which is at most NotAfter of the CA
	// Backdate is the time from NotBefore to Now; zero means LeafBackdate. NotBefore is at least
	// NotBefore of the CA.
	Backdate time.Duration
	Key      *ecdsa.PrivateKey // nil creates a new key
	// For is the public key of a holder that keeps its private key. If For is set, Key has no
	// effect, and the Leaf has no key.
	For *ecdsa.PublicKey
	// Lineage and Root are the results of LineageOf for the certificate that this certificate
	// renews. Both are empty for a certificate that is not a renewal.
	Lineage, Root string
	// Ticket is the serial number of the ticket with which the machine joined the cluster
	// (TicketOf). It is empty for other holders.
	Ticket string
	Now    time.Time // zero means the present time
}

// Distinct returns the values without duplicates, in the order of their first occurrence. It
// returns nil if there are none.
func Distinct[T string | netip.Addr](values []T) []T {
	var out []T
	seen := map[T]bool{}
	for _, v := range values {
		if !seen[v] {
			out, seen[v] = append(out, v), true
		}
	}
	return out
}

// NewKey creates a P-256 key.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key: cannot generate: %w", err)
	}
	return key, nil
}

// NewCA creates a self-signed CA with a new key. The CA expires after ttl.
func NewCA(name string, ttl time.Duration) (*CA, error) {
	return NewCAAt(name, ttl, time.Now())
}

// NewCAAt creates the CA that NewCA would create at the time now.
func NewCAAt(name string, ttl time.Duration, now time.Time) (*CA, error) {
	if name == "" || ttl <= 0 {
		return nil, fmt.Errorf("CA %q: cannot create: expected a name and a positive TTL", name)
	}
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-CABackdate).UTC(),
		NotAfter:              now.Add(ttl).UTC(),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	cert, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("CA %q: cannot create: %w", name, err)
	}
	return &CA{Cert: cert, Key: key}, nil
}

// Issue creates a leaf certificate that the CA signs. The certificate expires at the latest with
// the CA. Issue fails for an incomplete Spec and for an expired CA.
func (ca *CA) Issue(spec Spec) (*Leaf, error) {
	template, key, err := leafTemplate(spec)
	if err != nil {
		return nil, err
	}
	holder := spec.For
	if holder == nil {
		holder = &key.PublicKey
	}
	if template.NotAfter.After(ca.Cert.NotAfter) {
		template.NotAfter = ca.Cert.NotAfter
	}
	if template.NotBefore.Before(ca.Cert.NotBefore) {
		template.NotBefore = ca.Cert.NotBefore
	}
	if !template.NotAfter.After(template.NotBefore) {
		return nil, fmt.Errorf("certificate %q: cannot issue: the CA %q expired at %s; create a new CA",
			spec.CN, ca.Cert.Subject.CommonName, ca.Cert.NotAfter.Format(time.RFC3339))
	}
	cert, err := sign(template, ca.Cert, holder, ca.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %q: cannot issue: %w", spec.CN, err)
	}
	return &Leaf{Cert: cert, Key: key}, nil
}

// SelfSigned creates a leaf certificate that its own key signs. It is the identity of a machine
// that has no certificate of the machine CA yet. Clients cannot verify it, so they compare its
// Fingerprint.
func SelfSigned(spec Spec) (*Leaf, error) {
	template, key, err := leafTemplate(spec)
	if err != nil {
		return nil, err
	}
	cert, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("certificate %q: cannot sign by its own key: %w", spec.CN, err)
	}
	return &Leaf{Cert: cert, Key: key}, nil
}

func leafTemplate(spec Spec) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	if spec.CN == "" || spec.TTL <= 0 {
		return nil, nil, fmt.Errorf("certificate %q: cannot issue: expected a common name and a positive TTL", spec.CN)
	}
	var usage []x509.ExtKeyUsage
	switch spec.Usage {
	case Client:
		usage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	case Server:
		usage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	case Both:
		usage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	default:
		return nil, nil, fmt.Errorf("certificate %q: cannot issue: invalid usage %d", spec.CN, spec.Usage)
	}
	key := spec.Key
	if key == nil && spec.For == nil {
		var err error
		if key, err = NewKey(); err != nil {
			return nil, nil, err
		}
	}
	serial, err := newSerial()
	if spec.Lineage != "" {
		serial, err = lineageSerial(spec.Lineage)
	}
	if err != nil {
		return nil, nil, err
	}
	now, backdate := spec.Now, spec.Backdate
	if now.IsZero() {
		now = time.Now()
	}
	if backdate == 0 {
		backdate = LeafBackdate
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: spec.CN, Organization: spec.O},
		NotBefore:             now.Add(-backdate).UTC(),
		NotAfter:              now.Add(spec.TTL).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           usage,
		BasicConstraintsValid: true,
		DNSNames:              spec.DNS,
	}
	if spec.Lineage != "" {
		template.URIs = []*url.URL{{Scheme: "urn", Opaque: originPrefix + spec.Lineage + ":" + strings.TrimPrefix(spec.Root, fingerprintPrefix)}}
	}
	if spec.Ticket != "" {
		template.URIs = append(template.URIs, &url.URL{Scheme: "urn", Opaque: ticketPrefix + spec.Ticket})
	}
	for _, ip := range spec.IPs {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.Unmap().AsSlice()))
	}
	return template, key, nil
}

func sign(template, parent *x509.Certificate, holder *ecdsa.PublicKey, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, holder, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// SignedBy reports whether at least one of the CAs has signed a certificate.
func SignedBy(c *x509.Certificate, cas ...*x509.Certificate) bool {
	return slices.ContainsFunc(cas, func(ca *x509.Certificate) bool { return c.CheckSignatureFrom(ca) == nil })
}

// ticketPrefix follows "urn:" in a URI of the certificates of a machine that joined with a ticket.
// The URI is a subject alternative name.
const ticketPrefix = "orlop:ticket:"

// TicketOf returns the serial number of the ticket with which the holder of a certificate joined
// the cluster. All certificates of a member contain this number, also the renewals, so the ledger
// can revoke them together. For any other certificate it returns an empty string.
func TicketOf(cert *x509.Certificate) string {
	for _, u := range cert.URIs {
		if ticket, found := strings.CutPrefix(u.Opaque, ticketPrefix); found && u.Scheme == "urn" {
			return ticket
		}
	}
	return ""
}

// originPrefix follows "urn:" in a URI of a renewed certificate. The URI is a subject alternative
// name.
const originPrefix = "orlop:renewed-from:"

// Serial returns the serial number of a certificate in lower-case hexadecimal.
func Serial(cert *x509.Certificate) string { return fmt.Sprintf("%x", cert.SerialNumber) }

// LineageOf returns the ID of the lineage of a certificate, and the Fingerprint of the CA that
// issued the first certificate of the lineage. The ID is the serial number of this first
// certificate. If the certificate itself is the first, root is empty.
func LineageOf(cert *x509.Certificate) (serial, root string) {
	for _, u := range cert.URIs {
		if rest, found := strings.CutPrefix(u.Opaque, originPrefix); found && u.Scheme == "urn" {
			serial, root, _ := strings.Cut(rest, ":")
			return serial, fingerprintPrefix + root
		}
	}
	return Serial(cert), ""
}

// Sizes in octets. The serial number of a renewed certificate has a prefix that derives from its
// lineage, and random octets (RFC 5280, 4.1.2.2: at most 20 octets). By the prefix, a machine
// recognizes the lineage without a list of all renewals. The first bit of the prefix is 0 and the
// second is 1, so the number is positive and always has 19 octets. The serial numbers of other
// certificates have at most 16 octets.
const prefixSize, randomSize = 8, 11

func lineageSerial(origin string) (*big.Int, error) {
	octets := make([]byte, prefixSize+randomSize)
	if _, err := rand.Read(octets); err != nil {
		return nil, fmt.Errorf("certificate: cannot create serial number: %w", err)
	}
	copy(octets, lineagePrefix(origin))
	return new(big.Int).SetBytes(octets), nil
}

func lineagePrefix(origin string) []byte {
	sum := sha256.Sum256([]byte("orlop row " + origin))
	sum[0] = sum[0]&0x3f | 0x40
	return sum[:prefixSize]
}

// LineagePrefix returns the prefix of the lineage with the ID `origin`, in hexadecimal. The serial
// numbers of its renewed certificates begin with this prefix (LineagePrefixOf).
func LineagePrefix(origin string) string { return hex.EncodeToString(lineagePrefix(origin)) }

// LineagePrefixOf returns the lineage prefix in the serial number (Serial) of a renewed
// certificate. It returns an empty string for any other certificate, and for a renewal by an old
// version, which wrote no prefix.
func LineagePrefixOf(serial string) string {
	if len(serial) != 2*(prefixSize+randomSize) {
		return ""
	}
	return serial[:2*prefixSize]
}

// HolderID returns a text that is the same for all certificates of a holder, for limits per holder.
// For a member it is the serial number of the ticket, and for other holders the ID of the lineage.
func HolderID(cert *x509.Certificate) string {
	origin, _ := LineageOf(cert)
	return cmp.Or(TicketOf(cert), origin)
}

// NewRequest creates a CSR (PKCS #10, DER) that contains only the public key. The CSR proves that
// its sender has the private key.
func NewRequest(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("certificate request: cannot create: %w", err)
	}
	return der, nil
}

// ParseRequest returns the public key in a CSR (DER). It fails if the signature does not prove that
// the sender has the private key. It ignores all other content.
func ParseRequest(der []byte) (*ecdsa.PublicKey, error) {
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("certificate request: cannot read: %w", err)
	}
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("certificate request: cannot use: expected an ECDSA key on P-256")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: cannot use: %w", err)
	}
	return key, nil
}

// newSerial returns a random serial number from 1 to 2^127 (RFC 5280 permits up to 20 octets).
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serial number: cannot draw: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

// NeedsRenewal reports whether a certificate must be renewed: two thirds of its validity period
// have passed, or it is not valid yet.
func NeedsRenewal(cert *x509.Certificate, now time.Time) bool {
	return now.Before(cert.NotBefore) || !now.Before(RenewAt(cert))
}

// RenewAt returns the time from which NeedsRenewal returns true.
func RenewAt(cert *x509.Certificate) time.Time {
	life := cert.NotAfter.Sub(cert.NotBefore)
	return cert.NotBefore.Add(life / 3 * 2)
}

const fingerprintPrefix = "sha256:"

// Fingerprint returns an identifier of the public key of a certificate: "sha256:" and the SHA-256
// of its SubjectPublicKeyInfo in hexadecimal. All certificates with the same key have the same
// fingerprint. So the fingerprint of a machine stays the same at each renewal, and when the machine
// CA signs a certificate in place of the self-signed one.
func Fingerprint(cert *x509.Certificate) string { return fingerprint(cert.RawSubjectPublicKeyInfo) }

// KeyFingerprint returns the Fingerprint of certificates with this public key.
func KeyFingerprint(key *ecdsa.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		panic(fmt.Sprintf("pki: a key that is not on P-256: %v", err)) // see EncodeKey
	}
	return fingerprint(der)
}

func fingerprint(spki []byte) string {
	sum := sha256.Sum256(spki)
	return fingerprintPrefix + hex.EncodeToString(sum[:])
}

// ParseFingerprint parses a fingerprint that a person has typed, and returns it in the form of
// Fingerprint. The text may have upper-case letters, and colons between the bytes.
func ParseFingerprint(text string) (string, error) {
	digits, found := strings.CutPrefix(strings.ToLower(strings.TrimSpace(text)), fingerprintPrefix)
	digits = strings.ReplaceAll(digits, ":", "")
	sum, err := hex.DecodeString(digits)
	if !found || err != nil || len(sum) != sha256.Size {
		return "", fmt.Errorf("fingerprint %q: cannot read: expected sha256: and 64 hexadecimal digits, as the machine's console shows it", text)
	}
	return fingerprintPrefix + hex.EncodeToString(sum), nil
}

// Matches reports whether the private key belongs to the certificate.
func Matches(cert *x509.Certificate, key *ecdsa.PrivateKey) bool {
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	return err == nil && bytes.Equal(spki, cert.RawSubjectPublicKeyInfo)
}

var errNotCA = errors.New("the certificate is not a CA certificate")

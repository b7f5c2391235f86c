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

// The organisations (O) of a client certificate that give its holder a role on the machine's API.
const (
	RolePrefix = "orlop:"
	// by the machine CA; all others by an operator's CA or the client CA
	RoleMachine  = RolePrefix + "machine"
	RoleReader   = RolePrefix + "reader"
	RoleOperator = RolePrefix + "operator"
	RoleAdmin    = RolePrefix + "admin"
	// These may do one thing each.
	RoleLogReader   = RolePrefix + "log-reader"
	RoleImageImport = RolePrefix + "image-import"
	// RoleJoin is that of a ticket, by which a machine becomes one of the cluster. People do not
	// get it.
	RoleJoin       = RolePrefix + "join"
	RoleEtcdBackup = RolePrefix + "etcd-backup"
)

// Roles are those that people get, without RolePrefix, the least first; those that may do one thing
// only come last.
func Roles() []string {
	return []string{"reader", "operator", "admin", "log-reader", "image-import", "etcd-backup"}
}

const (
	// CABackdate is how far before its making a CA begins to be valid.
	CABackdate = 2 * 365 * 24 * time.Hour
	// LeafBackdate is the same for a leaf whose Spec says nothing: enough for clocks that are a
	// little apart.
	LeafBackdate = 5 * time.Minute
)

// Usage is what a leaf certificate may be used for.
type Usage int

// A certificate for TLS clients, for TLS servers, or for a process that is both (an etcd peer).
const (
	Client Usage = iota + 1
	Server
	Both
)

// CA is a certificate authority that can issue leaf certificates directly; it allows no authority
// below itself.
type CA struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// Leaf is a certificate with its key.
type Leaf struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// Spec says what a leaf certificate is for.
type Spec struct {
	CN  string       // subject's common name
	O   []string     // subject's organisations; Kubernetes reads them as groups, apid as roles
	DNS []string     // names of a server
	IPs []netip.Addr // addresses of a server

	Usage Usage
	TTL   time.Duration // counted from Now; cut to the end of the CA
	// Backdate is how long before Now the certificate begins; zero means LeafBackdate. It never
	// begins before its CA.
	Backdate time.Duration
	Key      *ecdsa.PrivateKey // nil makes a new one
	// For is the key of somebody who keeps the private half; Key is not looked at then, and the
	// Leaf has none.
	For *ecdsa.PublicKey
	// Lineage and Root are of the certificate that this one is the renewal of, as LineageOf returns
	// them; empty for one that is none.
	Lineage, Root string
	// Ticket is the serial number of the ticket by which a machine has come to the cluster; see
	// TicketOf.
	Ticket string
	Now    time.Time // zero means the present time
}

// NewKey makes a P-256 key.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key: cannot generate: %w", err)
	}
	return key, nil
}

// NewCA makes a self-signed authority with a new key, valid for ttl from now.
func NewCA(name string, ttl time.Duration) (*CA, error) {
	return NewCAAt(name, ttl, time.Now())
}

// NewCAAt is NewCA at another time than the present.
func NewCAAt(name string, ttl time.Duration, now time.Time) (*CA, error) {
	if name == "" || ttl <= 0 {
		return nil, fmt.Errorf("CA %q: cannot make: a name and a lifetime above zero are needed", name)
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
		return nil, fmt.Errorf("CA %q: cannot make: %w", name, err)
	}
	return &CA{Cert: cert, Key: key}, nil
}

// Issue makes a leaf certificate signed by the authority.
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
		return nil, fmt.Errorf("certificate %q: cannot issue: the CA %q ended at %s; make a new CA",
			spec.CN, ca.Cert.Subject.CommonName, ca.Cert.NotAfter.Format(time.RFC3339))
	}
	cert, err := sign(template, ca.Cert, holder, ca.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %q: cannot issue: %w", spec.CN, err)
	}
	return &Leaf{Cert: cert, Key: key}, nil
}

// SelfSigned makes a leaf certificate signed by its own key: a machine's identity before there is a
// cluster whose CA could sign it. Clients cannot verify it; they pin its Fingerprint.
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
		return nil, nil, fmt.Errorf("certificate %q: cannot issue: a common name and a lifetime above zero are needed", spec.CN)
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
		return nil, nil, fmt.Errorf("certificate %q: cannot issue: usage %d is none of Client, Server, Both", spec.CN, spec.Usage)
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
		serial, err = rowSerial(spec.Lineage)
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

// SignedBy tells whether one of some authorities has signed a certificate.
func SignedBy(c *x509.Certificate, cas ...*x509.Certificate) bool {
	return slices.ContainsFunc(cas, func(ca *x509.Certificate) bool { return c.CheckSignatureFrom(ca) == nil })
}

// ticketPrefix begins what is behind "urn:" in the subject alternative name of what a machine got
// by a ticket.
const ticketPrefix = "orlop:ticket:"

// TicketOf is the serial number of the ticket by which the holder of a certificate has come to the
// cluster; empty for all others. All that a machine gets names it, its renewals too, so that all of
// it can be revoked at once.
func TicketOf(cert *x509.Certificate) string {
	for _, u := range cert.URIs {
		if ticket, found := strings.CutPrefix(u.Opaque, ticketPrefix); found && u.Scheme == "urn" {
			return ticket
		}
	}
	return ""
}

// originPrefix begins what is behind "urn:" in the subject alternative name of a renewed
// certificate.
const originPrefix = "orlop:renewed-from:"

// Serial is a certificate's serial number, hexadecimal.
func Serial(cert *x509.Certificate) string { return fmt.Sprintf("%x", cert.SerialNumber) }

// LineageOf is the serial number of the first certificate of a row in which each was renewed from
// the one before, and the Fingerprint of the CA that vouches for that one. A certificate that is
// not a renewal is the first of its own, and root is empty.
func LineageOf(cert *x509.Certificate) (serial, root string) {
	for _, u := range cert.URIs {
		if rest, found := strings.CutPrefix(u.Opaque, originPrefix); found && u.Scheme == "urn" {
			serial, root, _ := strings.Cut(rest, ":")
			return serial, fingerprintPrefix + root
		}
	}
	return Serial(cert), ""
}

// The serial number of a renewed certificate begins with the mark of its row, so that whoever reads
// it knows the row, without a list of all that were ever renewed: rowMark octets, of which the
// first bit is 0 and the second is 1, and rowRandom random ones (RFC 5280, 4.1.2.2: at most 20
// octets). Others have 16 octets at most.
const rowMark, rowRandom = 8, 11

func rowSerial(origin string) (*big.Int, error) {
	octets := make([]byte, rowMark+rowRandom)
	if _, err := rand.Read(octets); err != nil {
		return nil, fmt.Errorf("certificate: cannot make a serial number: %w", err)
	}
	copy(octets, markOf(origin))
	return new(big.Int).SetBytes(octets), nil
}

func markOf(origin string) []byte {
	sum := sha256.Sum256([]byte("orlop row " + origin))
	sum[0] = sum[0]&0x3f | 0x40
	return sum[:rowMark]
}

// LineagePrefix is the mark of the row that begins with the certificate origin, as it stands in hexadecimal
// at the beginning of the serial numbers of renewed certificates (LineagePrefixOf).
func LineagePrefix(origin string) string { return hex.EncodeToString(markOf(origin)) }

// LineagePrefixOf is the mark of its row in the serial number of a renewed certificate (Serial); empty for
// other certificates, and for those that were renewed by a version that did not write it.
func LineagePrefixOf(serial string) string {
	if len(serial) != 2*(rowMark+rowRandom) {
		return ""
	}
	return serial[:2*rowMark]
}

// CommonNameOf names who has a certificate and all its renewals, for what one may have at a time: the
// ticket by which a machine came, or the first certificate of the row.
func CommonNameOf(cert *x509.Certificate) string {
	origin, _ := LineageOf(cert)
	return cmp.Or(TicketOf(cert), origin)
}

// NewRequest makes a certificate request (PKCS #10, DER) that proves that its maker has the key. It
// says nothing else.
func NewRequest(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("certificate request: cannot make: %w", err)
	}
	return der, nil
}

// ParseRequest returns the key of a certificate request, whose maker has it. What else the request
// asks for does not count.
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

// newSerial makes a random serial number of 127 bits (RFC 5280 allows 20 octets, positive).
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serial number: cannot draw: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

// NeedsRenewal tells whether a certificate has lived two thirds of its life, or is not valid at all
// at that time.
func NeedsRenewal(cert *x509.Certificate, now time.Time) bool {
	return now.Before(cert.NotBefore) || !now.Before(RenewAt(cert))
}

// RenewAt is the time from which NeedsRenewal holds.
func RenewAt(cert *x509.Certificate) time.Time {
	life := cert.NotAfter.Sub(cert.NotBefore)
	return cert.NotBefore.Add(life / 3 * 2)
}

const fingerprintPrefix = "sha256:"

// Fingerprint names the key of a certificate: "sha256:" and the SHA-256 of its SubjectPublicKeyInfo
// in hexadecimal. It is taken of the key and not of the certificate so that a machine keeps its
// identity when its self-signed certificate is replaced by one of the cluster's CA, and at each
// renewal.
func Fingerprint(cert *x509.Certificate) string { return fingerprint(cert.RawSubjectPublicKeyInfo) }

// KeyFingerprint is the Fingerprint of a certificate with that key.
func KeyFingerprint(key *ecdsa.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		panic(fmt.Sprintf("pki: a key that is not on P-256: %v", err)) // as in EncodeKey
	}
	return fingerprint(der)
}

func fingerprint(spki []byte) string {
	sum := sha256.Sum256(spki)
	return fingerprintPrefix + hex.EncodeToString(sum[:])
}

// ParseFingerprint checks a fingerprint as a user may have typed it and returns it in the form of
// Fingerprint. Letters may be upper case, and colons may stand between the bytes.
func ParseFingerprint(text string) (string, error) {
	digits, found := strings.CutPrefix(strings.ToLower(strings.TrimSpace(text)), fingerprintPrefix)
	digits = strings.ReplaceAll(digits, ":", "")
	sum, err := hex.DecodeString(digits)
	if !found || err != nil || len(sum) != sha256.Size {
		return "", fmt.Errorf("fingerprint %q: cannot read: expected sha256: and 64 hexadecimal digits, as the machine's console shows it", text)
	}
	return fingerprintPrefix + hex.EncodeToString(sum), nil
}

// Matches tells whether the key belongs to the certificate.
func Matches(cert *x509.Certificate, key *ecdsa.PrivateKey) bool {
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	return err == nil && bytes.Equal(spki, cert.RawSubjectPublicKeyInfo)
}

var errNotCA = errors.New("the certificate is not one of a certificate authority")

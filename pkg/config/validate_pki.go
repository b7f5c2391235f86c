package config

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"slices"
	"time"
)

// namedAuthority is a CA of the cluster with the name of its field.
type namedAuthority struct {
	name       string
	pair       CertKey
	accepted   []Certificate // accepted CAs of the same name
	everywhere bool          // workers need the certificate, too
	optional   bool          // even a control-plane machine can be without it
	signs      []purpose     // the certificates that it signs
}

func (k *PKI) authorities() []namedAuthority {
	return []namedAuthority{
		{name: "kubernetes", pair: k.Kubernetes, accepted: k.Accepted.Kubernetes, everywhere: true, signs: []purpose{servers, clients}},
		{name: "etcd", pair: k.Etcd, accepted: k.Accepted.Etcd, signs: []purpose{servers, clients}},
		{name: "frontProxy", pair: k.FrontProxy, accepted: k.Accepted.FrontProxy, signs: []purpose{clients}},
		{name: "machine", pair: k.Machine, accepted: k.Accepted.Machine, everywhere: true, signs: []purpose{servers, clients}},
		{name: "client", pair: k.Client, accepted: k.Accepted.Client, optional: true, signs: []purpose{clients}},
	}
}

// Trusted returns the certificates that the cluster trusts, by the name of the CA ("client"): that of
// the CA that issues, if it is set, and those of the accepted CAs.
func (k *PKI) Trusted() map[string][]Certificate {
	out := map[string][]Certificate{}
	for _, a := range k.authorities() {
		if !a.pair.Cert.IsZero() {
			out[a.name] = append(out[a.name], a.pair.Cert)
		}
		out[a.name] = append(out[a.name], a.accepted...)
	}
	return out
}

// purpose is the purpose of a certificate (extended key usage, RFC 5280, 4.2.1.12). If a CA has
// extended key usages, Go and OpenSSL accept its certificates for these purposes only.
type purpose struct {
	usage x509.ExtKeyUsage
	name  string // as in RFC 5280
	of    string // plural of the holder, for messages
}

var (
	servers = purpose{x509.ExtKeyUsageServerAuth, "serverAuth", "servers"}
	clients = purpose{x509.ExtKeyUsageClientAuth, "clientAuth", "clients"}
)

// permittedBy reports whether a CA may sign certificates for the purpose.
func (p purpose) permittedBy(ca *x509.Certificate) bool {
	return len(ca.ExtKeyUsage) == 0 && len(ca.UnknownExtKeyUsage) == 0 ||
		slices.Contains(ca.ExtKeyUsage, p.usage) || slices.Contains(ca.ExtKeyUsage, x509.ExtKeyUsageAny)
}

// signs checks that the extended key usages of a CA permit certificates for all of these purposes.
func (v checks) signs(path string, c Certificate, all ...purpose) {
	if c.IsZero() {
		return
	}
	for _, p := range all {
		if !p.permittedBy(c.X509()) {
			v.on(path, wrong{
				reason:   fmt.Sprintf("%s may not sign certificates of %s (extended key usage)", quote(c.X509().Subject.String()), p.of),
				expected: "a certificate authority without extended key usages, or with " + p.name,
			})
		}
	}
}

// nameConstraints is the extension of RFC 5280, 4.2.1.10.
var nameConstraints = asn1.ObjectIdentifier{2, 5, 29, 30}

// unconstrained checks that a CA has no name constraints. Name constraints could forbid the names
// in the certificates of the cluster: names and addresses of the cluster, and identifiers as URIs.
func (v checks) unconstrained(path string, c Certificate) {
	cert := c.X509()
	if slices.ContainsFunc(cert.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(nameConstraints) }) {
		v.on(path, wrong{
			reason:   fmt.Sprintf("%s limits the names of its certificates (name constraints), which are those of the cluster", quote(cert.Subject.String())),
			expected: "a certificate authority without name constraints",
		})
	}
}

// authority checks that a certificate is a CA that may sign certificates (RFC 5280, 4.2.1.3 and
// 4.2.1.9).
func (v checks) authority(path string, c Certificate) {
	if c.IsZero() {
		return
	}
	cert := c.X509()
	const want = "a certificate authority: CA:TRUE and the key usage certSign"
	switch {
	case !cert.BasicConstraintsValid || !cert.IsCA:
		v.on(path, wrong{reason: fmt.Sprintf("%s is not a CA (no CA:TRUE)", quote(cert.Subject.String())), expected: want})
	case cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0:
		v.on(path, wrong{reason: fmt.Sprintf("%s may not sign certificates (key usage)", quote(cert.Subject.String())), expected: want})
	case cert.NotAfter.Before(cert.NotBefore):
		v.on(path, wrong{reason: "its validity ends before it begins", expected: want})
	}
	switch cert.SignatureAlgorithm {
	case x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1:
		v.on(path, wrong{reason: fmt.Sprintf("signed with %s, which can be forged", cert.SignatureAlgorithm), expected: "SHA-256 or better"})
	}
	if r, ok := cert.PublicKey.(*rsa.PublicKey); ok && r.N.BitLen() < 2048 {
		v.on(path, wrong{reason: fmt.Sprintf("an RSA key of %d bits", r.N.BitLen()), expected: "at least 2048 bits, or ECDSA P-256"})
	}
}

// bundle checks that each certificate is a CA, and that at least one of them may sign server
// certificates. The CAs need not be self-signed, because the machine trusts each of them directly.
func (v checks) bundle(path string, b Bundle) {
	for _, c := range b.all {
		v.authority(path, c)
	}
	if !slices.ContainsFunc(b.all, func(c Certificate) bool { return servers.permittedBy(c.X509()) }) && len(b.all) > 0 {
		v.signs(path, b.all[0], servers)
	}
}

// root validates a CA of the cluster. signs has the purposes of the certificates that the CA signs.
// The CA must be self-signed: clients with OpenSSL require a chain that ends in a self-signed
// certificate, and clients get only the CA itself. The CA may forbid intermediate CAs (a path
// length of 0), because it signs all certificates of the cluster itself.
func (v checks) root(path string, c Certificate, signs []purpose) {
	v.authority(path, c)
	v.signs(path, c, signs...)
	if c.IsZero() {
		return
	}
	v.unconstrained(path, c)
	cert := c.X509()
	const want = "a root: a certificate that is signed with its own key"
	switch {
	case len(cert.Subject.Names) == 0: // RFC 5280, 4.1.2.6
		v.on(path, wrong{reason: "the CA has no name (subject)", expected: "a certificate authority with a name"})
	case !bytes.Equal(cert.RawIssuer, cert.RawSubject):
		v.on(path, wrong{
			reason:   fmt.Sprintf("%s is an intermediate, signed by %s, which clients do not receive", quote(cert.Subject.String()), quote(cert.Issuer.String())),
			expected: want, hint: "`orlopctl gen secrets` generates them",
		})
	case cert.IsCA && cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) != nil:
		v.on(path, wrong{reason: fmt.Sprintf("%s is not signed with its own key, although it has the name of its issuer", quote(cert.Subject.String())), expected: want})
	}
	if len(cert.UnhandledCriticalExtensions) > 0 {
		v.on(path, wrong{reason: "it has a critical extension that is not known here", expected: want})
	}
}

// pair checks that the key belongs to the certificate.
func (v checks) pair(path string, pair CertKey) {
	if pair.Cert.IsZero() || pair.Key.IsZero() {
		return
	}
	if !samePublic(pair.Key.Signer().Public(), pair.Cert.X509().PublicKey) {
		v.on(path+".key", wrong{reason: "does not belong to the certificate " + quote(pair.Cert.X509().Subject.String()), expected: "the key whose public half is in cert"})
	}
}

func samePublic(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// signingKey checks that a key with which the machine signs is ECDSA on P-256. Package pki and the
// service-account tokens support only this type. Its signatures are fast to create and verify.
func (v checks) signingKey(path string, key PrivateKey) {
	signer := key.Signer()
	if signer == nil {
		return
	}
	if k, ok := signer.(*ecdsa.PrivateKey); !ok || k.Curve != elliptic.P256() {
		v.on(path, wrong{reason: "a key of another type", expected: "ECDSA on the curve P-256"})
	}
}

// client checks that a client certificate of the API server or of the machine is complete, and that
// its key belongs to it.
func (v checks) client(path string, pair *CertKey) {
	if pair == nil {
		return
	}
	if pair.Cert.IsZero() {
		v.on(path+".cert", wrong{reason: "missing", expected: "the certificate in PEM"})
	}
	if pair.Key.IsZero() {
		v.on(path+".key", wrong{reason: "missing", expected: "the private key in PEM"})
	}
	v.pair(path, *pair)
}

func acceptedPath(pki, name string, i int) string {
	return fmt.Sprintf("%s.accepted.%s[%d]", pki, name, i)
}

// CheckTime returns a problem for each certificate that is not valid at a time. Parse does not
// check the validity, because a machine with a wrong clock or an expired CA must still be able to
// parse its stored configuration. Before a caller accepts a new configuration, it must call
// CheckTime with the time of a clock that is known to be correct. CheckTime ignores the CAs in
// pki.accepted, because an expired CA there has no effect.
func (c *Config) CheckTime(now time.Time) Problems {
	v := expiryCheck{newReport(cmp.Or(c.origins["Machine"].File, "-"), c.origins), now}
	for i, ca := range c.Machine.Spec.Trust.OperatorCAs {
		v.valid(fmt.Sprintf("Machine.spec.trust.operatorCAs[%d]", i), ca)
	}
	hook := func(path string, ca Bundle, client *CertKey) {
		v.validBundle(path+".ca", ca)
		if client != nil {
			v.valid(path+".client.cert", client.Cert)
		}
	}
	for i, r := range c.Machine.Spec.Logging.Receivers {
		hook(fmt.Sprintf("Machine.spec.logging.receivers[%d]", i), r.CA, r.Client)
	}
	v.validBundle("Machine.spec.egress.ca", c.Machine.Spec.Egress.CA)
	if nts := c.Network.Spec.NTP.NTS; nts != nil {
		v.validBundle("Network.spec.ntp.nts.ca", nts.CA)
	}
	if tls := c.Network.Spec.DNS.TLS; tls != nil {
		v.validBundle("Network.spec.dns.tls.ca", tls.CA)
	}
	for i, r := range c.Machine.Spec.Registries {
		v.validBundle(fmt.Sprintf("Machine.spec.registries[%d].ca", i), r.CA)
	}
	for _, a := range c.Addons {
		for i, r := range a.Spec.Registries {
			v.validBundle(fmt.Sprintf("%s.spec.registries[%d].ca", addonPath(a.Metadata.Name), i), r.CA)
		}
	}
	if c.Cluster == nil {
		return v.problems.sorted()
	}
	for _, a := range c.Cluster.Spec.PKI.authorities() {
		v.valid("Cluster.spec.pki."+a.name+".cert", a.pair.Cert)
	}
	if s := c.Cluster.Spec.Etcd.Snapshots; s.Target != nil {
		v.validBundle("Cluster.spec.etcd.snapshots.target.ca", s.Target.CA)
	}
	const kube = "Cluster.spec.kubernetes."
	k := &c.Cluster.Spec.Kubernetes
	for i, j := range k.Authentication.JWT {
		v.validBundle(fmt.Sprintf("%sauthentication.jwt[%d].ca", kube, i), j.CA)
	}
	if w := k.Authentication.Webhook; w != nil {
		hook(kube+"authentication.webhook", w.CA, w.Client)
	}
	for i, w := range k.Authorization.Webhooks {
		hook(fmt.Sprintf("%sauthorization.webhooks[%d]", kube, i), w.CA, w.Client)
	}
	if m := k.APIServer.KMS; m != nil {
		v.validBundle(kube+"apiServer.kms.transit.ca", m.Transit.CA)
		if c := m.Transit.Certificate; c != nil {
			v.valid(kube+"apiServer.kms.transit.certificate.cert", c.Cert)
		}
	}
	return v.problems.sorted()
}

// expiryCheck collects the problems of certificates that are not valid at the time now.
type expiryCheck struct {
	*report
	now time.Time
}

// validBundle checks that at least one certificate of a bundle is valid now. The other certificates
// can be previous or future CAs.
func (v expiryCheck) validBundle(path string, b Bundle) {
	now := v.now
	valid := func(c Certificate) bool { return !now.After(c.X509().NotAfter) && !now.Before(c.X509().NotBefore) }
	if !b.IsZero() && !slices.ContainsFunc(b.all, valid) {
		v.valid(path, b.all[0])
	}
}

func (v expiryCheck) valid(path string, c Certificate) {
	if c.IsZero() {
		return
	}
	cert := c.X509()
	now := v.now
	day := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch {
	case now.After(cert.NotAfter):
		v.on(path, wrong{reason: fmt.Sprintf("%s expired at %s", quote(cert.Subject.String()), day(cert.NotAfter)), expected: "a certificate that is valid at " + day(now)})
	case now.Before(cert.NotBefore):
		v.on(path, wrong{
			reason:   fmt.Sprintf("%s is not valid before %s", quote(cert.Subject.String()), day(cert.NotBefore)),
			expected: "a certificate that is valid at " + day(now), hint: "or the clock is wrong",
		})
	}
}

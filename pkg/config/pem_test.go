package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

// issue returns a CA certificate and its key. The parameter by is the CA that signs the
// certificate; if it is nil, the certificate is self-signed. The function change modifies the
// template of the certificate; it can be nil.
func issue(t *testing.T, name string, by *CertKey, change func(*x509.Certificate)) CertKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if change != nil {
		change(template)
	}
	parent, signer := template, any(key)
	if by != nil {
		parent, signer = by.Cert.X509(), by.Key.Signer()
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	check(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	check(t, err)
	pair, err := NewCertKey(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	check(t, err)
	return pair
}

// TestBundle checks that a Bundle is parsed from a text with one or more certificates, and a
// Certificate only from a text with exactly one.
func TestBundle(t *testing.T) {
	one, two := issue(t, "one", nil, nil), issue(t, "two", nil, nil)
	a, b, key := one.Cert.PEM(), two.Cert.PEM(), one.Key.PEM()
	crlf := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
	body := strings.Split(a, "\n")
	const openssl = "Certificate:\n    Data:\n        Version: 3 (0x2)\n        Serial Number:\n            1f:a0:--\n        Signature Algorithm: ecdsa-with-SHA256\n" +
		"            pub:\n                04:6b:17:d1:f2:e1:2c:42:47:f8:bc:e6:e5:63:a4:40:f2:77\n"
	for _, c := range []struct {
		name, text string
		count      int
		says       string
	}{
		{"one certificate", a, 1, ""},
		{"two certificates", a + b, 2, ""},
		{"a certificate twice", a + a, 1, ""},
		{"the text of openssl x509 -text", openssl + a, 1, ""},
		{"the text of openssl before each certificate", openssl + a + openssl + b, 2, ""},
		{"comments before, between and after certificates", "# the one\n" + a + "\nsubject=CN = two\nissuer=CN = two\n\n" + b + "# end", 2, ""},
		{"line ends of DOS", crlf(openssl + a + b), 2, ""},
		{"line ends of old Macs", strings.ReplaceAll(a, "\n", "\r"), 1, ""},
		{"a byte order mark", "\ufeff" + a, 1, ""},
		{"spaces at the ends of lines", strings.ReplaceAll(a, "\n", " \t\n"), 1, ""},
		{"an indentation", "  " + strings.ReplaceAll(a, "\n", "\n  "), 1, ""},
		{"no line end", strings.TrimSpace(a), 1, ""},
		{"a key after the certificate", a + key, 0, "it contains a private key"},
		{"a key before the certificate", key + a, 0, "it contains a private key"},
		{"a key between comments", a + "# secret\n" + key, 0, "it contains a private key"},
		{"a PEM block of another type", a + strings.ReplaceAll(b, "CERTIFICATE", "PKCS7"), 0, `the PEM block is a "PKCS7"`},
		{"a request", strings.ReplaceAll(a, "CERTIFICATE", "CERTIFICATE REQUEST"), 0, `the PEM block is a "CERTIFICATE REQUEST"`},
		{"a block without a certificate", a + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0, "not a certificate"},
		{"a block without its last line", a + strings.Join(body[:3], "\n"), 0, "damaged"},
		{"a block without its first line", a + strings.Join(body[1:], "\n"), 0, "damaged"},
		{"a block without its first and last line", a + strings.Join(body[1:3], "\n"), 0, "damaged"},
		{"a block within a block", body[0] + "\n" + a, 0, "damaged"},
		{"a last line of another type", strings.Replace(a, "END CERTIFICATE", "END PRIVATE KEY", 1), 0, "damaged"},
		{"a damaged first line", a + "-----BEGIN CERTIFICATE----\n", 0, "damaged"},
		{"a first line in a comment", a + "see -----BEGIN CERTIFICATE-----\n", 0, "damaged"},
		{"invalid characters in a block", strings.Replace(a, body[1], body[1]+"\n!!!!", 1), 0, "damaged"},
		{"an empty text", "", 0, "not PEM"},
		{"text without a block", openssl, 0, "not PEM"},
		{"too many certificates", strings.Repeat(a, maxBundle+1), 0, "at most 256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got Bundle
			err := got.UnmarshalText([]byte(c.text))
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || !got.IsZero() {
					t.Errorf("%v, %s; want %q", err, got, c.says)
				}
				if err != nil && strings.Contains(err.Error(), body[1]) {
					t.Error("the message contains the rejected text")
				}
				return
			}
			check(t, err)
			if len(got.Certificates()) != c.count {
				t.Errorf("%s", got)
			}
			again, err := ParseBundle(got.PEM())
			if err != nil || again.PEM() != got.PEM() {
				t.Errorf("the printed text cannot be parsed: %v", err)
			}
			single, err := ParseCertificate(c.text)
			if (err == nil) != (c.count == 1) || err == nil && single.PEM() != got.PEM() {
				t.Errorf("ParseCertificate: %v", err)
			}
		})
	}
	for name, text := range map[string]string{
		"line ends of DOS": crlf(key), "the attributes of a PKCS #12 file": "Bag Attributes\n    friendlyName: one\nKey Attributes: <No Attributes>\n" + key,
	} {
		if got, err := ParsePrivateKey(text); err != nil || got.PEM() != key {
			t.Errorf("a key, %s: %v", name, err)
		}
	}
	sec1, err := x509.MarshalECPrivateKey(one.Key.Signer().(*ecdsa.PrivateKey))
	check(t, err)
	generated := "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1}))
	if _, err := ParsePrivateKey(generated); err != nil {
		t.Errorf("a key as openssl ecparam -genkey writes it: %v", err)
	}
	for _, text := range []string{key + two.Key.PEM(), key + a, a} {
		if _, err := ParsePrivateKey(text); err == nil {
			t.Error("a text without a key, or with more than one, is accepted")
		}
	}
}

// TestRoots checks that each CA of the cluster, including the accepted CAs, must be a self-signed
// CA that may sign certificates.
func TestRoots(t *testing.T) {
	root := issue(t, "root", nil, nil)
	impostor := issue(t, "root", nil, nil)
	for _, c := range []struct {
		name string
		pair CertKey
		says string // empty if accepted
	}{
		{"a root", issue(t, "own", nil, nil), ""},
		{"a root that may sign leaves only", issue(t, "own", nil, func(c *x509.Certificate) { c.MaxPathLenZero = true }), ""},
		{"a root without key usage", issue(t, "own", nil, func(c *x509.Certificate) { c.KeyUsage = 0 }), ""},
		{"an intermediate", issue(t, "between", &root, nil), `"CN=between" is an intermediate, signed by "CN=root"`},
		{"a certificate with the name of its issuer", issue(t, "root", &impostor, nil), "is not signed with its own key"},
		{"a certificate that is no CA", issue(t, "own", nil, func(c *x509.Certificate) { c.IsCA = false }), "is not a CA"},
		{"a CA that may not sign", issue(t, "own", nil, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign }), "may not sign certificates"},
		{"a CA without a name", issue(t, "", nil, nil), "has no name"},
		{"the key of another CA", CertKey{Cert: issue(t, "own", nil, nil).Cert, Key: root.Key}, "does not belong to the certificate"},
	} {
		for _, a := range (&PKI{}).authorities() {
			for _, at := range []string{"Cluster.spec.pki." + a.name, acceptedPath("Cluster.spec.pki", a.name, 0)} {
				spec := &ClusterSpec{}
				fields := map[string]*CertKey{"kubernetes": &spec.PKI.Kubernetes, "etcd": &spec.PKI.Etcd, "frontProxy": &spec.PKI.FrontProxy,
					"machine": &spec.PKI.Machine, "client": &spec.PKI.Client}
				accepted := map[string]*[]Certificate{"kubernetes": &spec.PKI.Accepted.Kubernetes, "etcd": &spec.PKI.Accepted.Etcd,
					"frontProxy": &spec.PKI.Accepted.FrontProxy, "machine": &spec.PKI.Accepted.Machine, "client": &spec.PKI.Accepted.Client}
				says := c.says
				if strings.Contains(at, "accepted") {
					*fields[a.name], *accepted[a.name] = root, []Certificate{c.pair.Cert}
					if c.name == "the key of another CA" {
						says = "" // an accepted CA has no key
					}
				} else {
					*fields[a.name] = c.pair
				}
				r := newReport("", nil)
				clusterValidator{checks{r}, &Config{Cluster: &Cluster{Spec: *spec}}}.pki("Cluster.spec.pki", spec)
				var found []string
				for _, problem := range r.problems {
					if strings.Contains(problem.String(), at) && !strings.Contains(problem.String(), "missing") {
						found = append(found, problem.String())
					}
				}
				all := strings.Join(found, "\n")
				if (says == "") != (all == "") || !strings.Contains(all, says) {
					t.Errorf("%s as %s: %q, want %q", c.name, at, all, says)
				}
			}
		}
	}
}

// TestPurposes checks each root as each CA of the cluster. The check must reject a root if and only
// if clients would reject the certificates that the root signs as this CA.
func TestPurposes(t *testing.T) {
	const ofServers, ofClients, names = "may not sign certificates of servers", "may not sign certificates of clients", "(name constraints)"
	usages := func(all ...x509.ExtKeyUsage) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.ExtKeyUsage = all }
	}
	_, network, err := net.ParseCIDR("192.0.2.0/24")
	check(t, err)
	for _, c := range []struct {
		name   string
		change func(*x509.Certificate)
		both   string // the message if the root signs for servers and clients
		client string // the message if the root signs for clients only
	}{
		{"a root", nil, "", ""},
		{"a root for servers and clients", usages(x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth), "", ""},
		{"a root for all purposes", usages(x509.ExtKeyUsageAny), "", ""},
		{"a root for clients", usages(x509.ExtKeyUsageClientAuth), ofServers, ""},
		{"a root for servers", usages(x509.ExtKeyUsageServerAuth), ofClients, ofClients},
		{"a root for code signing", usages(x509.ExtKeyUsageCodeSigning), ofServers, ofClients},
		{"a root for an unknown purpose", func(c *x509.Certificate) { c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{1, 3, 9999}} }, ofServers, ofClients},
		{"a root for an unknown purpose and clients", func(c *x509.Certificate) {
			c.ExtKeyUsage, c.UnknownExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, []asn1.ObjectIdentifier{{1, 3, 9999}}
		}, ofServers, ""},
		{"a root without intermediates", func(c *x509.Certificate) { c.MaxPathLenZero = true }, "", ""},
		{"a root for the names of a domain", func(c *x509.Certificate) { c.PermittedDNSDomains = []string{".corp.example"} }, names, names},
		{"a root for the names of a domain, critical", func(c *x509.Certificate) {
			c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{".corp.example"}, true
		}, names, names},
		{"a root for all names except those of a domain", func(c *x509.Certificate) { c.ExcludedDNSDomains = []string{"cluster.local"} }, names, names},
		{"a root for the addresses of a network", func(c *x509.Certificate) { c.PermittedIPRanges = []*net.IPNet{network} }, names, names},
		{"a root for the URIs of a domain", func(c *x509.Certificate) { c.PermittedURIDomains = []string{"corp.example"} }, names, names},
	} {
		root := issue(t, "own", nil, c.change)
		for _, a := range (&PKI{}).authorities() {
			want := c.both
			if len(a.signs) == 1 {
				want = c.client
			}
			r := newReport("", nil)
			checks{r}.root("pki", root.Cert, a.signs)
			got := r.problems.Error()
			if len(r.problems) == 0 {
				got = ""
			}
			if (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("%s, as %s: %q, want %q", c.name, a.name, got, want)
			}
			verified := true
			for _, p := range a.signs {
				verified = verified && verifies(t, root, p.usage)
			}
			if verified != (want == "") {
				t.Errorf("%s, as %s: clients accept the certificates of this root: %t", c.name, a.name, verified)
			}
		}
	}
}

// verifies reports whether a client that trusts only a root accepts a certificate that it has
// signed for a purpose.
func verifies(t *testing.T, root CertKey, usage x509.ExtKeyUsage) bool {
	t.Helper()
	leaf := issue(t, "leaf", &root, func(c *x509.Certificate) {
		c.IsCA, c.KeyUsage, c.ExtKeyUsage = false, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
		c.DNSNames, c.IPAddresses = []string{"kubernetes.default.svc.cluster.local"}, []net.IP{net.IPv4(127, 0, 0, 1)}
		c.URIs = []*url.URL{{Scheme: "urn", Opaque: "orlop:1"}}
	})
	roots := x509.NewCertPool()
	roots.AddCert(root.Cert.X509())
	_, err := leaf.Cert.X509().Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err == nil
}

// TestPurposesOfOthers checks the purposes of operator CAs, which sign client certificates, and of
// the CAs of servers that the machine calls.
func TestPurposesOfOthers(t *testing.T) {
	server := issue(t, "server", nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }).Cert
	client := issue(t, "client", nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }).Cert
	for _, c := range []struct {
		operators []Certificate
		ca        Bundle
		says      string
	}{
		{[]Certificate{client}, NewBundle(server), ""},
		{[]Certificate{client}, NewBundle(client, server), ""},
		{[]Certificate{client, server}, Bundle{}, `Machine.spec.trust.operatorCAs[1]: "CN=server" may not sign certificates of clients`},
		{nil, NewBundle(client), `Machine.spec.registries[0].ca: "CN=client" may not sign certificates of servers`},
		{nil, NewBundle(client), `authentication.jwt[0].ca: "CN=client" may not sign certificates of servers`},
		{nil, NewBundle(client), `authentication.webhook.ca: "CN=client" may not sign certificates of servers`},
		{nil, NewBundle(client), `authorization.webhooks[0].ca: "CN=client" may not sign certificates of servers`},
	} {
		m := &Machine{Metadata: Metadata{Name: "m"}, Spec: MachineSpec{Role: RoleWorker}}
		m.Spec.Trust.OperatorCAs = c.operators
		r := newReport("", nil)
		v := machineValidator{checks: checks{r}}
		v.machine(m)
		v.bundle("Machine.spec.registries[0].ca", c.ca)
		accessValidator{v.checks}.authentication("authentication", &Authentication{JWT: []JWTIssuer{{CA: c.ca}}, Webhook: &AuthenticationWebhook{CA: c.ca}})
		accessValidator{v.checks}.authorization("authorization", &Authorization{Webhooks: []AuthorizationWebhook{{CA: c.ca}}})
		var found []string
		for _, p := range r.problems {
			if text := p.String(); strings.Contains(text, "may not sign") {
				found = append(found, text)
			}
		}
		got := strings.Join(found, "\n")
		if (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%q, want %q", got, c.says)
		}
	}
}

// TestTimeOfBundles checks that a bundle is valid if at least one of its certificates is valid.
func TestTimeOfBundles(t *testing.T) {
	old := issue(t, "old", nil, func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(time.Minute) }).Cert
	fresh := issue(t, "fresh", nil, nil).Cert
	for _, c := range []struct {
		ca   Bundle
		says string
	}{
		{Bundle{}, ""}, {NewBundle(fresh), ""}, {NewBundle(old, fresh), ""}, {NewBundle(old), `"CN=old" expired at`},
	} {
		const target = "Cluster.spec.etcd.snapshots.target.ca"
		all := &Config{Cluster: &Cluster{}, Machine: Machine{}}
		all.Machine.Spec.Registries = []ImageRegistry{{CA: c.ca}}
		all.Machine.Spec.Egress.CA = c.ca
		all.Network.Spec.NTP.NTS = &NTS{CA: c.ca}
		all.Network.Spec.DNS.TLS = &DNSTLS{CA: c.ca}
		all.Machine.Spec.Logging.Receivers = []Receiver{{CA: c.ca}}
		all.Cluster.Spec.Etcd.Snapshots.Target = &SnapshotTarget{CA: c.ca}
		all.Cluster.Spec.Kubernetes.Authentication.JWT = []JWTIssuer{{CA: c.ca}}
		problems := all.CheckTime(time.Now())
		want := 7
		if c.says == "" {
			want = 0
		}
		if len(problems) != want || want > 0 && !strings.Contains(problems.Error(), target) || !strings.Contains(problems.Error(), c.says) {
			t.Errorf("%s: %v", c.ca, problems)
		}
	}
}

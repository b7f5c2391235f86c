package config

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"flag"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the goldens under testdata")

// example returns the configuration of the reference.
func example(t testing.TB) *Config {
	t.Helper()
	c, problems := Parse("reference.yaml", []byte(Reference))
	if len(problems) > 0 {
		t.Fatalf("the reference has problems:\n%v", problems)
	}
	return c
}

// values returns the certificates and keys that test documents name as $NAME, as YAML on one line.
func values(t testing.TB) map[string]string {
	t.Helper()
	ref := example(t)
	pki := ref.Cluster.Spec.PKI
	v := map[string]string{
		"OPERATOR": line(ref.Machine.Spec.Trust.OperatorCAs[0].PEM()),
		"SA_KEY":   line(pki.ServiceAccountKey.PEM()),
		"AES":      ref.Cluster.Spec.SecretsEncryptionKey.Reveal(),
		"CLIENT":   line(ref.Cluster.Spec.Kubernetes.Authentication.Webhook.Client.Cert.PEM()),
		"CLIENT_K": line(ref.Cluster.Spec.Kubernetes.Authentication.Webhook.Client.Key.PEM()),
	}
	whole := map[string]any{"serviceAccountKey": pki.ServiceAccountKey.PEM()}
	for _, a := range pki.authorities() {
		name := map[string]string{"kubernetes": "K8S", "etcd": "ETCD", "frontProxy": "FRONT", "machine": "MACHINE", "client": "CLIENTS"}[a.name]
		v[name], v[name+"_KEY"] = line(a.pair.Cert.PEM()), line(a.pair.Key.PEM())
		whole[a.name] = map[string]string{"cert": a.pair.Cert.PEM(), "key": a.pair.Key.PEM()}
	}
	text, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	v["PKI"] = string(text)
	v["CLUSTER"] = "{endpoint: https://10.0.0.5:6443, secretsEncryptionKey: " + v["AES"] + ", pki: " + v["PKI"] + "}"

	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	check(t, err)
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	check(t, err)
	v["LEAF"] = certificate(t, p256, func(c *x509.Certificate) { c.IsCA = false })
	v["NOSIGN"] = certificate(t, p256, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	v["REVERSED"] = certificate(t, p256, func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(-time.Hour) })
	v["P384"], v["P384_KEY"] = certificate(t, p384, nil), key(t, p384)
	v["ED25519_KEY"] = key(t, edwards)
	v["WEAK"], v["WEAK_KEY"] = certificate(t, weak, nil), key(t, weak)
	v["ENCRYPTED"] = line("-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END EC PRIVATE KEY-----\n")
	return v
}

// expand replaces each $NAME in a document by its value.
func expand(t testing.TB, values map[string]string, text string) string {
	return regexp.MustCompile(`\$[A-Z][A-Z0-9_]*`).ReplaceAllStringFunc(text, func(name string) string {
		v, ok := values[name[1:]]
		if !ok {
			t.Fatalf("the test document contains %s, for which the test has no value", name)
		}
		return v
	})
}

func certificate(t testing.TB, signer crypto.Signer, change func(*x509.Certificate)) string {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "test"}, BasicConstraintsValid: true, IsCA: true,
		NotBefore: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage: x509.KeyUsageCertSign,
	}
	if change != nil {
		change(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, signer.Public(), signer)
	check(t, err)
	return line(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
}

func key(t testing.TB, k any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(k)
	check(t, err)
	return line(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
}

// line returns a text as a YAML scalar on one line.
func line(text string) string { return `"` + strings.ReplaceAll(text, "\n", `\n`) + `"` }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

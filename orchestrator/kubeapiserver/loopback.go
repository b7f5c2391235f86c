package kubeapiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// loopbackTTL is the validity of the server's certificate for its connection to itself. The
// certificate exists only in memory and each start makes a new certificate, so it has to outlast
// the longest run of a process instead of being renewed.
const loopbackTTL = 10 * 365 * 24 * time.Hour

// selfSigned makes an ECDSA P-256 key and a self-signed CA certificate for one DNS name, both as
// PEM.
func selfSigned(name string) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate for %s: cannot make key: %w", name, err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		// the first time synchronization may set the clock back a little
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(loopbackTTL),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	certDER, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate for %s: cannot sign: %w", name, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate for %s: cannot encode key: %w", name, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certDER}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// These files hold the identity of the pod: its key and certificate, and the trusted CAs. The files
// are read again for each connection, because the kubelet renews them.
const (
	ownIdentity = "/identity/credentials.pem"
	believed    = "/identity/trust.pem"
)

func ownCertificate() (tls.Certificate, error) {
	text, err := os.ReadFile(ownIdentity)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(text, text)
}

func authorities() (*x509.CertPool, error) {
	text, err := os.ReadFile(believed)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate", believed)
	}
	return pool, nil
}

// named returns the URI in a certificate, which is the identity of its pod.
func named(cert *x509.Certificate) string {
	if len(cert.URIs) != 1 {
		return fmt.Sprintf("nobody: %v", cert.URIs)
	}
	return cert.URIs[0].String()
}

// servePeers requires a certificate from each client, and answers with the identity in it.
func servePeers(address string) error {
	server := &http.Server{
		Addr:              address,
		ReadHeaderTimeout: deadline,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, "hello", named(r.TLS.PeerCertificates[0]))
		}),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			own, err := ownCertificate()
			if err != nil {
				return nil, err
			}
			pool, err := authorities()
			return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}, err
		}},
	}
	return server.ListenAndServeTLS("", "")
}

// askPeer requests the address, and prints the identity in the certificate of the server and the
// answer. With anonymous, the client presents no certificate.
func askPeer(ctx context.Context, address string, anonymous bool) error {
	pool, err := authorities()
	if err != nil {
		return err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The certificate contains an identity and no host name. VerifyConnection verifies the
		// chain, and the story checks the printed identity.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("no certificate")
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool})
			fmt.Println("this is", named(s.PeerCertificates[0]))
			return err
		},
	}
	if !anonymous {
		own, err := ownCertificate()
		if err != nil {
			return err
		}
		config.Certificates = []tls.Certificate{own}
		fmt.Println("own certificate lasts", own.Leaf.NotAfter.Sub(own.Leaf.NotBefore))
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}

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

// The pod's identity: the volume has its key and certificate, and the trusted CAs. Both are read
// for each connection, because they are renewed.
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

// named returns the identity in a certificate.
func named(cert *x509.Certificate) string {
	if len(cert.URIs) != 1 {
		return fmt.Sprintf("nobody: %v", cert.URIs)
	}
	return cert.URIs[0].String()
}

// servePeers greets each client with a certificate by the identity in it.
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

// askPeer prints the identity of the server at an address, from its certificate, and its answer.
// With anonymous, the client presents no certificate.
func askPeer(ctx context.Context, address string, anonymous bool) error {
	pool, err := authorities()
	if err != nil {
		return err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// no verification of names: the certificate only holds an identity, which is checked below
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

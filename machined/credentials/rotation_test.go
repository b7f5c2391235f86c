package credentials

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestRotation steps through the configurations of a rotation of the Kubernetes CA with the files
// that the API server and a component read. In each step, both can connect to each other, also if
// one of them still has the files of the previous step. With the files of the first step on one
// side and of the last step on the other, the connection fails.
func TestRotation(t *testing.T) {
	base := authorities(t)
	before, next := base.Kubernetes.CA, authorities(t).Kubernetes.CA
	// all has the files of each configuration. The test writes the files of all configurations into
	// one directory, one configuration after another, as a machine does.
	root := t.TempDir()
	type files struct{ server, client, ca []byte }
	var all []files
	var starts []string
	for _, k := range []Authority{
		{CA: before}, {CA: before, Accepted: []*x509.Certificate{next.Cert}}, {CA: next, Accepted: []*x509.Certificate{before.Cert}}, {CA: next},
	} {
		a := base
		a.Kubernetes = k
		w := plan(t, node(), a, root)
		for _, op := range diff(t, w) {
			if err := op.Do(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if left := diff(t, w); len(left) != 0 {
			t.Fatalf("the diff is not empty after all operations: %v", left)
		}
		read := func(dir, name string) []byte {
			text, err := os.ReadFile(filepath.Join(root, dir, name))
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		pair := func(dir, cert, key string) []byte { return append(read(dir, cert), read(dir, key)...) }
		all = append(all, files{
			server: pair(paths.KubeAPI, nodespec.APIServerCert, nodespec.APIServerKey),
			client: pair(paths.KubeControllers, nodespec.ControllersCert, nodespec.ControllersKey),
			ca:     read(paths.KubeControllers, nodespec.CA),
		})
		if string(read(paths.KubeAPI, nodespec.CA)) != string(all[len(all)-1].ca) || string(read(paths.KubeNode, nodespec.CA)) != string(all[len(all)-1].ca) {
			t.Error("the processes trust different CAs")
		}
		// The controllers sign with exactly one CA.
		if one, err := pki.ParseCA(read(paths.KubeControllers, nodespec.SigningCA), read(paths.KubeControllers, nodespec.CAKey)); err != nil || !one.Cert.Equal(k.Cert) {
			t.Errorf("the controllers sign with %v, %v", one, err)
		}
		starts = append(starts, string(a.ReadAtStart(paths.KubeControllers)))
		if got := a.ReadAtStart(paths.KubeAPI); string(got) != string(base.ReadAtStart(paths.KubeAPI)) {
			t.Error("a step of the rotation restarts the API server")
		}
	}
	if starts[0] == starts[1] || starts[1] != starts[2] || starts[2] == starts[3] {
		t.Error("the controllers must restart if the trusted CAs change, and only then")
	}
	const steps = "none, accepted, issues, dropped"
	for server := range all {
		for client := range all {
			// The server has the files of one configuration, the client has the files of another.
			got := reaches(t, all[server].server, all[server].ca, all[client].client, all[client].ca)
			if near := server-client >= -1 && server-client <= 1; near && got != nil {
				t.Errorf("server in step %d, client in step %d (%s): %v", server, client, steps, got)
			} else if !near && got == nil {
				t.Errorf("server in step %d, client in step %d (%s): the connection succeeds", server, client, steps)
			}
		}
	}
}

// reaches makes a TLS connection with a certificate required on both sides, and returns the error
// of the client or of the server.
func reaches(t *testing.T, server, serverTrusts, client, clientTrusts []byte) error {
	t.Helper()
	pair := func(text []byte) []tls.Certificate {
		c, err := tls.X509KeyPair(text, text)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{c}
	}
	pool := func(text []byte) *x509.CertPool {
		p := x509.NewCertPool()
		if !p.AppendCertsFromPEM(text) {
			t.Fatal("no certificate")
		}
		return p
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	served := make(chan error, 1)
	go func() {
		s := tls.Server(a, &tls.Config{Certificates: pair(server), ClientCAs: pool(serverTrusts), ClientAuth: tls.RequireAndVerifyClientCert})
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("."))
		}
		served <- err
		a.Close()
	}()
	c := tls.Client(b, &tls.Config{Certificates: pair(client), RootCAs: pool(clientTrusts), ServerName: "localhost"})
	_, err := io.ReadFull(c, make([]byte, 1))
	b.Close()
	if refused := <-served; err == nil {
		err = refused
	}
	return err
}

package offlineapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Name is the name of the component, and of its kubeconfig with the identity of the node's agent.
const Name = "offline-api"

// asKubelet is the name of the component's kubeconfig with the identity of the kubelet.
const asKubelet = "offline-api-kubelet"

const (
	// The certificate is valid for the time valid before and after its creation. The time is long,
	// because the machine may get the correct time only after its boot. The key exists only until
	// the process ends.
	valid = 10 * 365 * 24 * time.Hour
	// caReloadInterval is the time between two checks for a change of the cluster's CA.
	caReloadInterval = 10 * time.Second
	// gracePeriod is the time that clients have to receive the end of their watches.
	gracePeriod = 2 * time.Second
)

// Components describes the component without its Run function. A single control-plane machine does
// not have the component: its API server runs whenever its node does.
func Components(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if _, there := kubeconfig.Balancer(spec); !there {
		return nil
	}
	return []component.Component{{Process: component.Node, Name: Name, Files: []component.File{
		kubeconfig.NodeFile(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey),
		kubeconfig.NodeFile(spec, dirs, asKubelet, nodespec.KubeletCert, nodespec.KubeletKey),
	}}}
}

// Server is the offline API server. It runs at most once in a process. Make it with New.
type Server struct {
	spec     nodespec.Spec
	dirs     dirs.Dirs
	answers  bool    // true: there is a record to serve
	record   *Record // nil after Stop
	store    *store
	problem  string // why the record cannot be used; empty without a record
	listener net.Listener
	cert     *pki.Leaf
	end      func()
	ended    chan struct{} // closed by Stop
}

// New reads the record, and writes the file of CAs that the node's components trust
// (dirs.Dirs.Authorities). It returns an error if it cannot write this file. Without a usable
// record, New returns a Server that does not listen.
func New(spec nodespec.Spec, dirs dirs.Dirs) (*Server, error) {
	s := &Server{spec: spec, dirs: dirs, ended: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.ended) })
	err := s.prepare()
	if s.answers = err == nil; err != nil {
		s.record, s.store = nil, nil
		if !errors.Is(err, fs.ErrNotExist) {
			// This is not an error of New, because the node works without a record as soon as an
			// API server is reachable.
			s.problem = err.Error()
		}
	}
	return s, s.authorities()
}

// prepare loads the record and opens the listener. It returns an error that wraps fs.ErrNotExist if
// there is no record to serve.
func (s *Server) prepare() (err error) {
	if _, err := os.Stat(s.met()); err == nil {
		// An API server has been ready since the boot. All pods of the node may already run, also
		// pods that the record does not contain.
		return fs.ErrNotExist
	}
	if s.record, err = Read(s.dirs.OfflineAPI, s.spec); err != nil {
		return err
	}
	if s.store, err = newStore(s.record); err != nil {
		return err
	}
	if s.cert, err = certificate(); err != nil {
		return err
	}
	s.listener, err = net.Listen("tcp4", "127.0.0.1:0")
	return err
}

// met returns the path of a file that exists if an API server has been ready since the boot.
func (s *Server) met() string { return filepath.Join(s.dirs.Node, "api-server-met") }

// Address returns the address on which the server listens, or "" without a record to serve.
func (s *Server) Address() string {
	if !s.answers {
		return ""
	}
	return s.listener.Addr().String()
}

// Stop ends the offline API server. The caller calls it when an API server is ready.
func (s *Server) Stop() { s.end() }

// Run serves the record until Stop is called, and then maintains the record until ctx is done.
func (s *Server) Run(ctx context.Context, announce component.Announce) error {
	tell := func(detail string) { announce(Name, true, detail) }
	tell(s.problem)
	ctx, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	ended := make(chan error, 2)
	parts.Go(func() { ended <- s.watchCA(ctx) })
	if s.answers {
		tell(fmt.Sprintf("serves the record of %s until an API server is ready, for %s",
			s.record.At.UTC().Format(time.RFC3339), some(namesOf(s.record.Objects[pods.resource], s.spec.Node.Name))))
		if err := s.serve(ctx); err != nil {
			return err
		}
	}
	select {
	case <-s.ended:
	case err := <-ended:
		return err
	}
	s.record, s.store = nil, nil
	if err := component.WriteFile(component.File{Path: s.met(), Mode: 0o600}); err != nil {
		return err
	}
	k := recorder{cluster: s.spec.Cluster, node: s.spec.Node.Name, dir: s.dirs.OfflineAPI}
	parts.Go(func() {
		ended <- k.run(ctx, component.KubeconfigPath(s.dirs.Node, asKubelet), component.KubeconfigPath(s.dirs.Node, Name), tell)
	})
	return <-ended
}

// serve serves requests until Stop is called or ctx is done.
func (s *Server) serve(ctx context.Context) error {
	authorities := x509.NewCertPool()
	content, err := os.ReadFile(filepath.Join(s.dirs.Node, nodespec.CA))
	if err != nil {
		return fmt.Errorf("cannot verify clients: %w", err)
	}
	if !authorities.AppendCertsFromPEM(content) {
		return errors.New("cannot verify clients: no certificate in the cluster's CA")
	}
	own := tls.Certificate{Certificate: [][]byte{s.cert.Cert.Raw}, PrivateKey: s.cert.Key}
	// At its boot, a machine without a real-time clock may have a time that is years too early. The
	// true time is later than the time of the record. So if the clock is before the time of the
	// record, serve verifies certificates at the time of the record.
	now, kept := time.Now, s.record.At
	if now().Before(kept) {
		now = func() time.Time { return kept }
	}
	config := &tls.Config{Time: now, Certificates: []tls.Certificate{own}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: authorities, MinVersion: tls.VersionTLS13}
	web := &http.Server{
		Handler:           &server{store: s.store, node: s.spec.Node.Name, ended: s.ended},
		TLSConfig:         config,
		ReadHeaderTimeout: timeout, IdleTimeout: resyncPeriod,
		// the discarded messages are, for example, about clients without TLS
		ErrorLog: log.New(io.Discard, "", 0),
	}
	served := make(chan error, 1)
	go func() { served <- web.ServeTLS(s.listener, "", "") }()
	select {
	case err := <-served:
		return fmt.Errorf("cannot serve: %w", err)
	case <-s.ended:
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), gracePeriod)
	defer cancel()
	if web.Shutdown(closing) != nil {
		_ = web.Close() // closes the remaining connections
	}
	return nil
}

// authorities writes the file of CAs with which the node's components verify API servers. The file
// contains the cluster's CA and, until Stop is called, the certificate of the offline API server.
func (s *Server) authorities() error {
	content, err := os.ReadFile(filepath.Join(s.dirs.Node, nodespec.CA))
	if err != nil {
		return fmt.Errorf("the cluster's CA: cannot read: %w", err)
	}
	select {
	case <-s.ended:
	default:
		if s.answers {
			content = append(append(bytes.TrimRight(content, "\n"), '\n'), s.cert.CertPEM()...)
		}
	}
	path := s.dirs.Authorities()
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
		return nil
	}
	return component.WriteFile(component.File{Path: path, Mode: 0o644, Content: string(content)})
}

// watchCA calls authorities every caReloadInterval until ctx is done, so the file follows changes
// of the cluster's CA.
func (s *Server) watchCA(ctx context.Context) error {
	ticker := time.NewTicker(caReloadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if err := s.authorities(); err != nil {
			return err
		}
	}
}

// commonName is the common name of the offline API server's certificate.
const commonName = "orlop:" + Name

// ServedByOfflineAPI reports whether a connection leads to an offline API server instead of an API
// server. The CA of API servers never signs a certificate with commonName.
func ServedByOfflineAPI(state *tls.ConnectionState) bool {
	return state != nil && len(state.PeerCertificates) > 0 && state.PeerCertificates[0].Subject.CommonName == commonName
}

// certificate makes a self-signed certificate. The certificate has the name with which the node's
// components verify an API server on loopback.
func certificate() (*pki.Leaf, error) {
	return pki.SelfSigned(pki.Spec{CN: commonName, DNS: []string{kubeconfig.Local().Name}, Usage: pki.Server, TTL: valid, Backdate: valid})
}

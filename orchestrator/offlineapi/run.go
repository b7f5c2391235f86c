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

// Name is the component's name, and the one of the kubeconfig by which it reads as the node's
// agent.
const Name = "stand-in"

// asKubelet is the name of the kubeconfig by which it reads as the kubelet.
const asKubelet = "stand-in-kubelet"

const (
	// valid is how long the certificate is good, and was before: the machine may hear after its
	// start what time it is. The key goes with the process.
	valid = 10 * 365 * 24 * time.Hour
	// believed is how often it is looked whether the cluster's CA is another one.
	believed = 10 * time.Second
	// farewell is how long clients have to hear that there is an API server.
	farewell = 2 * time.Second
)

// Components describes it without its Run function. A control plane of one machine has none: its
// API server comes and goes with its node.
func Components(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if _, there := kubeconfig.Balancer(spec); !there {
		return nil
	}
	return []component.Component{{Process: component.Node, Name: Name, Files: []component.File{
		kubeconfig.NodeFile(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey),
		kubeconfig.NodeFile(spec, dirs, asKubelet, nodespec.KubeletCert, nodespec.KubeletKey),
	}}}
}

// Server is the one of a start of the process. Make it with New.
type Server struct {
	spec     nodespec.Spec
	dirs     dirs.Dirs
	answers  bool    // there is something to answer from
	record   *Record // what; nil when it has ended
	world    *world
	problem  string // why not, when that is somebody's fault
	listener net.Listener
	cert     *pki.Leaf
	end      func()
	ended    chan struct{} // closed by End
}

// New reads the record, and writes the file of authorities that the node's components believe
// (dirs.Dirs.Authorities).
func New(spec nodespec.Spec, dirs dirs.Dirs) (*Server, error) {
	s := &Server{spec: spec, dirs: dirs, ended: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.ended) })
	err := s.prepare()
	if s.answers = err == nil; err != nil {
		s.record, s.world = nil, nil
		if !errors.Is(err, fs.ErrNotExist) {
			s.problem = err.Error() // the node works all the same, as soon as an API server does
		}
	}
	return s, s.authorities()
}

// prepare makes what it takes to answer.
func (s *Server) prepare() (err error) {
	if _, err := os.Stat(s.met()); err == nil {
		return fs.ErrNotExist // all pods of the node may run already, whichever ask for it
	}
	if s.record, err = Read(s.dirs.OfflineAPI, s.spec); err != nil {
		return err
	}
	if s.world, err = newWorld(s.record); err != nil {
		return err
	}
	if s.cert, err = certificate(); err != nil {
		return err
	}
	s.listener, err = net.Listen("tcp4", "127.0.0.1:0")
	return err
}

// met is a file that is there when an API server has worked since the machine's start.
func (s *Server) met() string { return filepath.Join(s.dirs.Node, "api-server-met") }

// Address is where it answers until End; empty when it has nothing to answer from.
func (s *Server) Address() string {
	if !s.answers {
		return ""
	}
	return s.listener.Addr().String()
}

// Stop is called when an API server works: from then on it is the only one that is asked.
func (s *Server) Stop() { s.end() }

// Run answers until End is called, and keeps the record after that, until ctx is done.
func (s *Server) Run(ctx context.Context, announce component.Announce) error {
	tell := func(detail string) { announce(Name, true, detail) }
	tell(s.problem)
	ctx, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	ended := make(chan error, 2)
	parts.Go(func() { ended <- s.keepAuthorities(ctx) })
	if s.answers {
		tell(fmt.Sprintf("answers in the place of the API server until one works, with what that said at %s, for %s",
			s.record.At.UTC().Format(time.RFC3339), some(namesOf(s.record.Objects[pods.resource], s.spec.NodeName))))
		if err := s.serve(ctx); err != nil {
			return err
		}
	}
	select {
	case <-s.ended:
	case err := <-ended:
		return err
	}
	s.record, s.world = nil, nil
	if err := component.WriteFile(component.File{Path: s.met(), Mode: 0o600}); err != nil {
		return err
	}
	k := keeper{cluster: s.spec.Cluster, node: s.spec.NodeName, folder: s.dirs.OfflineAPI}
	parts.Go(func() {
		ended <- k.follow(ctx, kubeconfig.Path(s.dirs.Node, asKubelet), kubeconfig.Path(s.dirs.Node, Name), tell)
	})
	return <-ended
}

// serve answers until End is called or ctx is done.
func (s *Server) serve(ctx context.Context) error {
	authorities := x509.NewCertPool()
	content, err := os.ReadFile(filepath.Join(s.dirs.Node, nodespec.CA))
	if err != nil {
		return fmt.Errorf("cannot check who asks: %w", err)
	}
	if !authorities.AppendCertsFromPEM(content) {
		return errors.New("cannot check who asks: no certificate in the cluster's CA")
	}
	own := tls.Certificate{Certificate: [][]byte{s.cert.Cert.Raw}, PrivateKey: s.cert.Key}
	// A machine without a clock of its own does not know at its start how late it is, but that it
	// is later than when something was kept.
	now, kept := time.Now, s.record.At
	if now().Before(kept) {
		now = func() time.Time { return kept }
	}
	config := &tls.Config{Time: now, Certificates: []tls.Certificate{own}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: authorities, MinVersion: tls.VersionTLS13}
	web := &http.Server{
		Handler:           &server{world: s.world, node: s.spec.NodeName, ended: s.ended},
		TLSConfig:         config,
		ReadHeaderTimeout: patience, IdleTimeout: fresh,
		ErrorLog: log.New(io.Discard, "", 0), // who comes without TLS
	}
	served := make(chan error, 1)
	go func() { served <- web.ServeTLS(s.listener, "", "") }()
	select {
	case err := <-served:
		return fmt.Errorf("cannot serve: %w", err)
	case <-s.ended:
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if web.Shutdown(closing) != nil {
		_ = web.Close() // who does not go is put out
	}
	return nil
}

// authorities writes the file of those whom the node's components believe to be an API server: once
// one works, nobody but the cluster's CA.
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

// keepAuthorities has the file follow the cluster's CA until ctx is done.
func (s *Server) keepAuthorities(ctx context.Context) error {
	ticker := time.NewTicker(believed)
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

// commonName is that of the stand-in's certificate.
const commonName = "orlop:" + Name

// ServedByOfflineAPI tells whether a connection leads to a stand-in and not to an API server. The authority of
// API servers signs no certificate of this name.
func ServedByOfflineAPI(state *tls.ConnectionState) bool {
	return state != nil && len(state.PeerCertificates) > 0 && state.PeerCertificates[0].Subject.CommonName == commonName
}

// certificate makes one that is its own authority, for the name by which components ask for an API
// server on loopback.
func certificate() (*pki.Leaf, error) {
	return pki.SelfSigned(pki.Spec{CN: commonName, DNS: []string{kubeconfig.Local().Name}, Usage: pki.Server, TTL: valid, Backdate: valid})
}

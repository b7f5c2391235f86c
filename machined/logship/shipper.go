package logship

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"

	"github.com/orlop-os/orlop/machined/logship/sender"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/kubeaudit"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Config is the configuration of log shipping.
type Config struct {
	Machine   string // machine name, in each record
	Receivers []config.Receiver
	Egress    egress.Config // how receivers are reached
}

// Deps is the environment of a Shipper.
type Deps struct {
	Config cell.View[Config] // read: the configured receivers
	// Dir returns the directory of the cursor files; empty while no disk is mounted.
	Dir func() string
	// AuditLogs returns the two records of the audit log; nil for a record that cannot be written.
	AuditLogs func() (changes, refused *audit.Log)
	// KubernetesAudit returns the directory of the audit log of Kubernetes; empty on a machine
	// without an API server.
	KubernetesAudit func() string
	Events          Events             // source "events"
	Services        *supervise.Manager // source "services"
	// Pods is the environment for the logs of pods.
	Pods PodDeps
	// Restarter runs the senders.
	Restarter panics.Restarter
	// Event adds an event about log shipping to the machine's events.
	Event func(kind, message string)
}

// Shipper ships logs to the receivers of the configuration.
type Shipper struct {
	deps  Deps
	rings rings

	mu     sync.Mutex
	closed bool
	all    []*shipment // in the order of the configuration
	// kubernetes is the audit log of Kubernetes. Its files are synced while the configuration has a
	// receiver for it, reachable or not.
	kubernetes syncing
	listens    bool // the socket of podlogd is open
}

// New returns a Shipper without receivers; Run starts it.
func New(d Deps) *Shipper { return &Shipper{deps: d} }

// shipment is a receiver with its sender.
type shipment struct {
	machine    string
	egress     egress.Config
	kubernetes *kubeaudit.Log // nil without source kubernetes-audit
	to         config.Receiver
	sender     *sender.Sender
	pods       *podShipment // nil without source pods
	stop       context.CancelFunc
	ended      chan struct{}
}

// syncing is the audit log of Kubernetes with the loop that syncs its files; log is nil without a
// loop.
type syncing struct {
	log   *kubeaudit.Log
	stop  context.CancelFunc
	ended chan struct{}
}

// Run ships logs to the receivers of the configuration until ctx ends.
func (s *Shipper) Run(ctx context.Context) {
	for w := s.deps.Config.Watch(); ; {
		now, _, err := w.Next(ctx)
		if err != nil {
			return
		}
		if err := s.set(ctx, now); err != nil {
			s.deps.Event("failure", err.Error())
		}
	}
}

// set ships to these receivers only. Unchanged receivers retain their sender.
func (s *Shipper) set(ctx context.Context, c Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	dir, err := s.cursors(c.Receivers)
	s.syncKubernetes(ctx, c.Receivers)
	err = errors.Join(err, s.preparePods(c.Receivers))
	before := s.all
	s.all = nil
	for _, r := range c.Receivers {
		i := slices.IndexFunc(before, func(old *shipment) bool { return old.to.Name == r.Name })
		if i >= 0 && before[i].machine == c.Machine && before[i].egress == c.Egress && before[i].kubernetes == s.kubernetesLog(r) && reflect.DeepEqual(before[i].to, r) {
			s.all = append(s.all, before[i])
			continue
		}
		var last <-chan struct{} // only one sender at a time writes the cursor file
		if i >= 0 {
			last = before[i].ended
		}
		next, startErr := s.startSender(ctx, c, r, dir, last)
		if startErr != nil {
			err = errors.Join(err, fmt.Errorf("receiver %s: %w", r.Name, startErr))
			continue
		}
		s.all = append(s.all, next)
		s.deps.Event("operation", fmt.Sprintf("send to receiver %s at %s", r.Name, r.Address))
	}
	for _, old := range before {
		if !slices.Contains(s.all, old) {
			old.stop()
			s.deps.Event("operation", fmt.Sprintf("stop sending to receiver %s at %s", old.to.Name, old.to.Address))
		}
	}
	return err
}

// syncKubernetes starts or stops the loop that syncs the audit log of Kubernetes.
func (s *Shipper) syncKubernetes(ctx context.Context, receivers []config.Receiver) {
	dir := ""
	if slices.ContainsFunc(receivers, wantsKubernetes) {
		dir = s.deps.KubernetesAudit()
	}
	switch have := s.kubernetes; {
	case dir == "" && have.log != nil:
		have.stop()
		s.kubernetes = syncing{}
	case dir != "" && have.log == nil:
		ctx, stop := context.WithCancel(ctx)
		next := syncing{log: kubeaudit.NewLog(dir), stop: stop, ended: make(chan struct{})}
		go func() {
			defer close(next.ended)
			s.deps.Restarter.Run(ctx, "sync of the audit log of Kubernetes", next.log.Run)
		}()
		s.kubernetes = next
	}
}

// kubernetesLog returns the audit log of Kubernetes for a receiver; nil if the receiver does not
// get it.
func (s *Shipper) kubernetesLog(r config.Receiver) *kubeaudit.Log {
	if !wantsKubernetes(r) {
		return nil
	}
	return s.kubernetes.log
}

func wantsKubernetes(r config.Receiver) bool {
	return slices.Contains(r.Sources, config.SourceKubernetes)
}

// startSender starts the sender of a receiver after the end of the former sender.
func (s *Shipper) startSender(ctx context.Context, from Config, r config.Receiver, dir string, last <-chan struct{}) (*shipment, error) {
	secure, err := receiverTLS(r, from.Egress)
	if err != nil {
		return nil, err
	}
	c := sender.Config{
		Name: r.Name, Address: r.Address.String(), TLS: secure, Egress: from.Egress, Sources: s.sources(r.Sources),
		Event: s.deps.Event,
	}
	switch r.Format {
	case config.FormatOTLP:
		c.Batch = func(batch []sender.Record) *logs.LogsData { return sender.OTLP(from.Machine, batch, time.Now()) }
	case config.FormatSyslog:
		c.Encode = func(l sender.Record) []byte { return sender.Syslog(from.Machine, l) }
	default:
		c.Encode = func(l sender.Record) []byte { return sender.JSON(from.Machine, l) }
	}
	pods := newPodShipment(r, c)
	if dir != "" {
		c.Cursors = filepath.Join(dir, r.Name+".json")
	}
	ctx, stop := context.WithCancel(ctx)
	one := &shipment{
		machine: from.Machine, egress: from.Egress, kubernetes: s.kubernetesLog(r), to: r,
		sender: sender.New(c), pods: pods, stop: stop, ended: make(chan struct{}),
	}
	go func() {
		defer close(one.ended)
		if last != nil {
			<-last // the former sender was stopped, and ends in seconds at most
		}
		s.deps.Restarter.Run(ctx, "log shipping to "+r.Name, one.sender.Run)
	}()
	return one, nil
}

// cursors returns the directory of the cursor files; empty without a disk.
func (s *Shipper) cursors(receivers []config.Receiver) (string, error) {
	dir := s.deps.Dir()
	if dir == "" {
		return "", nil
	}
	return dir, s.prepare(dir, receivers)
}

// prepare creates a directory with a file per receiver. It removes the file of a former receiver
// only at the next change after the removal of the receiver: until then, the configuration may be
// on trial.
func (s *Shipper) prepare(dir string, receivers []config.Receiver) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return fmt.Errorf("log shipping: %w", err)
	}
	known := func(name string) bool {
		name = strings.TrimSuffix(filepath.Base(name), ".json")
		return slices.ContainsFunc(receivers, func(r config.Receiver) bool { return r.Name == name }) ||
			slices.ContainsFunc(s.all, func(one *shipment) bool { return one.to.Name == name })
	}
	var problems []error
	for _, name := range names {
		if !known(name) {
			problems = append(problems, os.Remove(name))
		}
	}
	if err := errors.Join(append(problems, os.MkdirAll(dir, 0o700))...); err != nil {
		return fmt.Errorf("log shipping: %w", err)
	}
	return nil
}

// Close ends all connections in order, so that the delivery of sent records is confirmed.
func (s *Shipper) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	all, kubernetes := s.all, s.kubernetes
	s.mu.Unlock()
	for _, one := range all {
		one.stop()
	}
	for _, one := range all {
		select {
		case <-one.ended:
		case <-ctx.Done():
			return fmt.Errorf("receiver %s: its connection has not ended in time", one.to.Name)
		}
	}
	if kubernetes.log == nil {
		return nil
	}
	kubernetes.stop()
	select {
	case <-kubernetes.ended:
	case <-ctx.Done():
		return errors.New("the audit log of Kubernetes is still being synced")
	}
	return nil
}

// States returns the receivers for topic "log-shipping".
func (s *Shipper) States() ([]sender.State, error) {
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	list := []sender.State{}
	for _, one := range all {
		list = append(list, one.sender.State())
		if one.pods != nil {
			list = append(list, one.pods.sender.State())
		}
	}
	return list, nil
}

// receiverTLS returns the TLS configuration for a receiver.
func receiverTLS(r config.Receiver, e egress.Config) (*tls.Config, error) {
	roots, err := e.Roots(r.CA.PEM(), false)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: cmp.Or(r.ServerName, r.Address.Host)}
	c.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return machineCertificate(request, filepath.Join(paths.ApidDir, "server.crt"), filepath.Join(paths.ApidDir, "server.key"))
	}
	if r.Client != nil {
		configured := &tls.Certificate{Certificate: [][]byte{r.Client.Cert.X509().Raw}, PrivateKey: r.Client.Key.Signer()}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return configured, nil }
	}
	return c, nil
}

// machineCertificate returns the present certificate of the machine if the receiver trusts the
// issuer of this certificate, which in a cluster is the machine CA. Any other receiver gets an
// empty certificate, which means none.
func machineCertificate(request *tls.CertificateRequestInfo, cert, key string) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("the machine's own certificate: %w", err)
	}
	if !slices.Contains(pair.Leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) || request.SupportsCertificate(&pair) != nil {
		return &tls.Certificate{}, nil
	}
	return &pair, nil
}

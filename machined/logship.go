package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/bootlog"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kmsg"
	"github.com/orlop-os/orlop/pkg/logring"
	"github.com/orlop-os/orlop/pkg/logship"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Log shipping to the receivers of the configuration (package logship). Each source is an existing
// store: the audit log on STATE, the events, the services' logs, the kernel log. Receivers change
// with the configuration.

// logShipping is the log shipping of the machine.
type logShipping struct {
	rings rings

	mu     sync.Mutex
	closed bool
	all    []*shipment // in the order of the configuration
}

// shipment is a receiver with its sender.
type shipment struct {
	machine string
	to      config.Receiver
	sender  *logship.Sender
	stop    context.CancelFunc
	ended   chan struct{}
}

// runLogShipping ships logs to the receivers of the configuration. A system that is not installed
// is unclaimed and ships no logs.
func (m *machine) runLogShipping(ctx context.Context) {
	if m.bootMedium != "" {
		return
	}
	for w := m.config.Watch(); ; {
		now, _, err := w.Next(ctx)
		if err != nil {
			return
		}
		machine, receivers := "", []config.Receiver(nil)
		if now.config != nil {
			machine, receivers = now.config.Machine.Metadata.Name, now.config.Machine.Spec.Logging.Receivers
		}
		if err := m.shipTo(ctx, machine, receivers); err != nil {
			m.events.add("log-shipping", "failure", err.Error())
		}
	}
}

// shipTo ships to these receivers only. Unchanged receivers retain their sender.
func (m *machine) shipTo(ctx context.Context, machine string, receivers []config.Receiver) error {
	s := &m.logShipping
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	dir, err := m.cursors(receivers)
	before := s.all
	s.all = nil
	for _, r := range receivers {
		i := slices.IndexFunc(before, func(old *shipment) bool { return old.to.Name == r.Name })
		if i >= 0 && before[i].machine == machine && reflect.DeepEqual(before[i].to, r) {
			s.all = append(s.all, before[i])
			continue
		}
		var last <-chan struct{} // only one sender at a time writes the cursor file
		if i >= 0 {
			last = before[i].ended
		}
		s.all = append(s.all, m.startSender(ctx, machine, r, dir, last))
		m.events.add("log-shipping", "operation", fmt.Sprintf("send to receiver %s at %s", r.Name, r.Address))
	}
	for _, old := range before {
		if !slices.Contains(s.all, old) {
			old.stop()
			m.events.add("log-shipping", "operation", fmt.Sprintf("stop sending to receiver %s at %s", old.to.Name, old.to.Address))
		}
	}
	return err
}

// startSender starts the sender of a receiver after the end of the former sender.
func (m *machine) startSender(ctx context.Context, machine string, r config.Receiver, dir string, last <-chan struct{}) *shipment {
	encode := logship.JSON
	if r.Format == config.FormatSyslog {
		encode = logship.Syslog
	}
	c := logship.Config{
		Name: r.Name, Address: r.Address.String(), TLS: receiverTLS(r), Sources: m.sources(r.Sources),
		Encode: func(l logship.Record) []byte { return encode(machine, l) },
		Event:  func(kind, message string) { m.events.add("log-shipping", kind, message) },
	}
	if dir != "" {
		c.Cursors = filepath.Join(dir, r.Name+".json")
	}
	ctx, stop := context.WithCancel(ctx)
	one := &shipment{machine: machine, to: r, sender: logship.New(c), stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(one.ended)
		if last != nil {
			<-last // it was stopped, and ends in seconds at most
		}
		m.restarter().Run(ctx, "log shipping to "+r.Name, one.sender.Run)
	}()
	return one
}

// cursors returns the directory of the cursor files; empty without a disk. It removes the cursors
// of former receivers, but only at the next change: the configuration may be on trial.
func (m *machine) cursors(receivers []config.Receiver) (string, error) {
	if why, _ := m.storageProblem.Get(); why != "" {
		return "", nil
	}
	names, err := filepath.Glob(filepath.Join(paths.LogShipping, "*.json"))
	if err != nil {
		return "", fmt.Errorf("log shipping: %w", err)
	}
	known := func(name string) bool {
		name = strings.TrimSuffix(filepath.Base(name), ".json")
		return slices.ContainsFunc(receivers, func(r config.Receiver) bool { return r.Name == name }) ||
			slices.ContainsFunc(m.logShipping.all, func(s *shipment) bool { return s.to.Name == name })
	}
	var problems []error
	for _, name := range names {
		if !known(name) {
			problems = append(problems, os.Remove(name))
		}
	}
	if err := errors.Join(append(problems, os.MkdirAll(paths.LogShipping, 0o700))...); err != nil {
		return paths.LogShipping, fmt.Errorf("log shipping: %w", err)
	}
	return paths.LogShipping, nil
}

// close ends all connections in order, so that sent records count as delivered.
func (s *logShipping) close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	all := s.all
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
	return nil
}

// states returns the receivers for topic "log-shipping".
func (s *logShipping) states() ([]logship.State, error) {
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	list := []logship.State{}
	for _, one := range all {
		list = append(list, one.sender.State())
	}
	return list, nil
}

// receiverTLS returns the TLS configuration for a receiver.
func receiverTLS(r config.Receiver) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool(), ServerName: cmp.Or(r.ServerName, r.Address.Host)}
	for _, ca := range r.CA.Certificates() {
		c.RootCAs.AddCert(ca.X509())
	}
	c.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return machineCertificate(request, filepath.Join(paths.ApidDir, "server.crt"), filepath.Join(paths.ApidDir, "server.key"))
	}
	if r.Client != nil {
		configured := &tls.Certificate{Certificate: [][]byte{r.Client.Cert.X509().Raw}, PrivateKey: r.Client.Key.Signer()}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return configured, nil }
	}
	return c
}

// machineCertificate returns the present certificate of the machine for a receiver that trusts its
// issuer, in a cluster the machine CA. Any other receiver gets an empty certificate, which means
// none.
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

// facilityAudit and facilityDaemon are syslog's facilities log audit and system daemons (RFC 5424,
// 6.2.1).
const facilityAudit, facilityDaemon = 13, 3

// Severities of records without their own.
const severityWarning, severityNotice, severityInfo = 4, 5, 6

// sources returns the sources of a receiver.
func (m *machine) sources(want []config.LogSource) (list []logship.Source) {
	boot := bootlog.ID()
	for _, source := range want {
		switch source {
		case config.SourceAudit:
			if m.callRecords.changes != nil {
				list = append(list, auditSource(string(source), m.callRecords.changes))
			}
			if m.callRecords.refused != nil {
				list = append(list, auditSource(string(source)+"-"+audit.Refused, m.callRecords.refused))
			}
		case config.SourceEvents:
			list = append(list, m.events.source(boot))
		case config.SourceServices:
			list = append(list, m.servicesSource(boot))
		case config.SourceKernel:
			list = append(list, kernelSource(boot))
		}
	}
	return list
}

// auditSource is a record of the audit log, line by line as written, so that its chain can be
// verified.
func auditSource(name string, log *audit.Log) logship.Source {
	return logship.Source{
		Newest: func() map[string]uint64 { return map[string]uint64{name: log.Newest()} },
		Follow: func(ctx context.Context, after func(string) uint64, each func(logship.Record) error) error {
			last := after(name)
			if last > log.Newest() {
				last = 0 // the record was restarted
			}
			for {
				grown := log.Changed()
				err := log.Read(last, func(number uint64, line []byte) error {
					var e audit.Entry
					if err := json.Unmarshal(line, &e); err != nil || number == 0 {
						return nil // the numbers around it show the gap
					}
					last = number
					l := logship.Record{
						Source: name, Number: number, Time: e.At, Facility: facilityAudit, Severity: severityInfo, App: name, Kind: "call", Text: string(line),
					}
					if e.Status != "OK" {
						l.Severity = severityNotice
					}
					return each(l)
				})
				if err != nil {
					return err
				}
				select {
				case <-grown:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		},
	}
}

// source is the events since power-on.
func (l *eventLog) source(boot string) logship.Source {
	const name = string(config.SourceEvents)
	return logship.Source{
		Newest: func() map[string]uint64 { last, _ := l.last.Get(); return map[string]uint64{name: last} },
		Follow: func(ctx context.Context, after func(string) uint64, each func(logship.Record) error) error {
			return l.tail(ctx, after(name), true, func(e event) error {
				line := logship.Record{
					Source: name, Boot: boot, Number: e.cursor, Time: e.time, Facility: facilityDaemon, Severity: severityInfo,
					App: "machined", Kind: e.kind, Text: e.source + ": " + e.message,
				}
				if e.kind == "failure" {
					line.Severity = severityWarning
				}
				return each(line)
			})
		},
	}
}

// kernelSource is the kernel log. Its records count from 0, lines from 1.
func kernelSource(boot string) logship.Source {
	const name = string(config.SourceKernel)
	return logship.Source{
		Newest: func() map[string]uint64 {
			last, err := kmsg.Tail(1)
			if err != nil || len(last) == 0 {
				return nil
			}
			return map[string]uint64{name: last[0].Seq + 1}
		},
		Follow: func(ctx context.Context, after func(string) uint64, each func(logship.Record) error) error {
			last := after(name)
			return kmsg.Follow(ctx, 0, func(r kmsg.Record) error {
				if r.Seq < last {
					return nil
				}
				return each(logship.Record{
					Source: name, Boot: boot, Number: r.Seq + 1, Time: kernelTime(r.At), Facility: r.Facility, Severity: r.Priority,
					App: name, Kind: "log", Text: r.Text,
				})
			})
		},
	}
}

// kernelTime returns the time of a kernel record, by the present clock.
func kernelTime(at time.Duration) time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return time.Now() // it never fails
	}
	return time.Now().Add(at - time.Duration(now.Nano()))
}

// servicesSource is the logs of all services, present and future.
func (m *machine) servicesSource(boot string) logship.Source {
	all := &m.logShipping.rings
	const prefix = string(config.SourceServices) + "/"
	return logship.Source{
		Newest: func() map[string]uint64 {
			newest := map[string]uint64{}
			for service, n := range all.get() {
				newest[prefix+service] = n.newest()
			}
			return newest
		},
		Follow: func(ctx context.Context, after func(string) uint64, each func(logship.Record) error) error {
			ctx, stop := context.WithCancel(ctx)
			var followers sync.WaitGroup
			defer followers.Wait()
			defer stop()
			following, stops := map[string]*logring.Ring{}, map[string]context.CancelFunc{}
			for w := m.services.Status().Watch(); ; {
				list, _, err := w.Next(ctx)
				if err != nil {
					return err
				}
				for _, s := range list {
					// else it has just been removed
					if ring, err := m.services.Log(s.Name); err == nil {
						all.set(s.Name, ring)
					}
				}
				// removed services too: their logs may contain the reason
				for service, n := range all.get() {
					if following[service] == n.ring {
						continue
					}
					if following[service] != nil {
						stops[service]()
					}
					one, stopOne := context.WithCancel(ctx)
					following[service], stops[service] = n.ring, stopOne
					followers.Go(panics.Guarded("log of "+service, func() {
						defer stopOne()
						n.tail(one, after(prefix+service), func(l logring.Line) error {
							return each(logship.Record{
								Source: prefix + service, Boot: boot, Number: n.before + l.Seq, Time: l.Time,
								Facility: facilityDaemon, Severity: severityInfo, App: service, Kind: "log", Text: l.Text,
							})
						})
					}))
				}
			}
		},
	}
}

// rings are the logs of the services. A service that is removed and added again gets another log;
// its line numbers continue.
type rings struct {
	mu  sync.Mutex
	all map[string]countedRing
}

// countedRing is a service's log.
type countedRing struct {
	ring   *logring.Ring
	before uint64 // number of lines in the former logs
}

func (c countedRing) newest() uint64 { return c.before + c.ring.Newest() }

// tail calls each for the lines after a number until the context ends or each fails.
func (c countedRing) tail(ctx context.Context, after uint64, each func(logring.Line) error) {
	for seq := after - min(after, c.before); ; {
		lines, _, err := c.ring.After(ctx, seq)
		if err != nil {
			return
		}
		for _, l := range lines {
			if each(l) != nil {
				return
			}
			seq = l.Seq
		}
	}
}

// set sets the present log of a service.
func (r *rings) set(service string, ring *logring.Ring) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]countedRing{}
	}
	have, known := r.all[service]
	switch {
	case !known:
		r.all[service] = countedRing{ring: ring}
	case have.ring != ring:
		r.all[service] = countedRing{ring, have.newest()}
	}
}

func (r *rings) get() map[string]countedRing {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.all)
}

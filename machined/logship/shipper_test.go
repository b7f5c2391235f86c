package logship

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/logship/logshiptest"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/kubeaudit"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/egress/egresstest"
	"github.com/orlop-os/orlop/pkg/otlp/otlptest"
	"github.com/orlop-os/orlop/pkg/pki"
)

// archive is a receiver of JSON lines.
type archive struct {
	*logshiptest.Receiver
	lines *cell.Cell[[]string]
}

func newArchive(t *testing.T) archive {
	t.Helper()
	r, err := logshiptest.New(func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }, pki.Spec{CN: "archive", DNS: []string{"archive"}})
	check(t, err)
	a := archive{r, cell.New([]string(nil))}
	r.Line = func(line string) {
		a.lines.Update(func(all []string) []string { return append(slices.Clip(all), line) })
	}
	check(t, r.Start())
	t.Cleanup(r.Kill)
	return a
}

// texts returns the texts of a source in JSON lines of machine m1.
func texts(t *testing.T, lines []string, source string) (all []string) {
	t.Helper()
	for _, line := range lines {
		var l struct{ Machine, Source, Kind, Text string }
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Machine != "m1" {
			t.Errorf("%s: %v", line, err)
		}
		if l.Source == source {
			all = append(all, l.Text)
		}
	}
	return all
}

// wait waits until n lines of a source have arrived, and returns the texts of all its lines.
func (a archive) wait(t *testing.T, source string, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lines, err := cell.Wait(ctx, a.lines, func(lines []string) bool { return len(texts(t, lines, source)) >= n })
	all := texts(t, lines, source)
	if err != nil {
		t.Fatalf("%s: %d lines; want %d", source, len(all), n)
	}
	return all
}

// receiver returns the entry of the configuration for this receiver.
func (a archive) receiver(t *testing.T, name string, sources ...config.LogSource) config.Receiver {
	t.Helper()
	ca, err := config.ParseCertificate(string(a.CA.CertPEM()))
	check(t, err)
	addr, err := netip.ParseAddrPort(a.Addr().String())
	check(t, err)
	return config.Receiver{
		Name: name, Address: config.HostPort{Host: addr.Addr().String(), Port: addr.Port()}, CA: config.NewBundle(ca), ServerName: "archive",
		Format: config.FormatJSON, Sources: sources,
	}
}

// eventList is the events of a machine.
type eventList struct {
	all *cell.Cell[[]Event]
}

func newEventList() *eventList { return &eventList{all: cell.New([]Event(nil))} }

func (l *eventList) add(source, kind, message string) {
	l.all.Update(func(all []Event) []Event {
		return append(all[:len(all):len(all)], Event{Number: uint64(len(all) + 1), Time: time.Now(), Source: source, Kind: kind, Message: message})
	})
}

func (l *eventList) newest() uint64 {
	all, _ := l.all.Get()
	return uint64(len(all))
}

func (l *eventList) tail(ctx context.Context, after uint64, each func(Event) error) error {
	for w := l.all.Watch(); ; {
		all, _, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for ; after < uint64(len(all)); after++ {
			if err := each(all[after]); err != nil {
				return err
			}
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestShipping checks that a change of the configuration starts and stops receivers, and that each
// receiver gets only its sources. The chain of the audit log must be intact at the receiver, and
// nothing is sent after the shutdown.
func TestShipping(t *testing.T) {
	l, err := audit.Open(t.TempDir(), audit.DefaultSize, audit.DefaultFiles)
	check(t, err)
	events := newEventList()
	m := New(Deps{
		Dir: func() string { return "" }, AuditLogs: func() (changes, refused *audit.Log) { return l, nil },
		Events: Events{Newest: events.newest, Tail: events.tail},
		Event:  func(kind, message string) { events.add("log-shipping", kind, message) },
	})
	first, second := newArchive(t), newArchive(t)
	record := func(n int) {
		for range n {
			check(t, l.Append(time.Now(), audit.Call{Subject: "CN=é,O=<orlop>", Method: "/orlop.v1alpha1.Machine/Reboot", Status: "OK"}))
		}
	}
	record(3)
	check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: []config.Receiver{first.receiver(t, "first", config.SourceAudit)}}))
	first.wait(t, "audit", 3)
	record(2)
	both := []config.Receiver{second.receiver(t, "second", config.SourceEvents, config.SourceAudit), first.receiver(t, "first", config.SourceAudit)}
	check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: both}))
	events.add("disk", "operation", "grow DATA")
	second.wait(t, "audit", 5)
	told := strings.Join(second.wait(t, "events", 3), "\n")
	for _, want := range []string{"log-shipping: send to receiver first at 127.0.0.1:", "log-shipping: send to receiver second at", "disk: grow DATA"} {
		if strings.Count(told, want) != 1 {
			t.Errorf("the events must contain %q once:\n%s", want, told)
		}
	}
	var chain audit.Chain
	for _, line := range first.wait(t, "audit", 5) {
		_, err := chain.Check([]byte(line))
		check(t, err)
	}
	if chain.First.Number != 1 || chain.Last.Number != 5 {
		t.Errorf("lines %v to %v", chain.First, chain.Last)
	}
	states, err := m.States()
	check(t, err)
	if len(states) != 2 || states[0].Name != "second" || states[1].Sent != 5 || states[1].Pending != 0 || states[1].Connected.IsZero() {
		t.Errorf("%+v", states)
	}

	check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: both[:1]}))
	record(1)
	second.wait(t, "audit", 6)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, m.Close(ctx))
	if lines, _ := first.lines.Get(); len(texts(t, lines, "audit")) != 5 || len(texts(t, lines, "events")) > 0 {
		t.Errorf("the receiver first has lines from the time after its removal, or events: %v", lines)
	}
	// After Close, a change of the configuration starts no sender.
	check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: both}))
	if states, err = m.States(); len(states) != 1 || !states[0].Connected.IsZero() || err != nil {
		t.Errorf("%+v, %v", states, err)
	}
}

// TestChainOverOTLP checks that a receiver of OTLP can verify the chain of the audit log, both from
// the texts and from the attributes.
func TestChainOverOTLP(t *testing.T) {
	l, err := audit.Open(t.TempDir(), audit.DefaultSize, audit.DefaultFiles)
	check(t, err)
	m := New(Deps{
		Dir: func() string { return "" }, AuditLogs: func() (changes, refused *audit.Log) { return l, nil }, Event: func(string, string) {},
	})
	a := newArchive(t)
	a.ReceiveOTLP()
	for range 40 {
		check(t, l.Append(time.Now(), audit.Call{Subject: "CN=é,O=<orlop>", Method: "/orlop.v1alpha1.Machine/Reboot", Status: "OK"}))
	}
	to := a.receiver(t, "archive", config.SourceAudit)
	to.Format = config.FormatOTLP
	check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: []config.Receiver{to}}))
	a.wait(t, "audit", 40)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, m.Close(ctx))
	var chain audit.Chain
	previous := ""
	lines, _ := a.lines.Get()
	for _, text := range lines {
		var line otlptest.Line
		check(t, json.Unmarshal([]byte(text), &line))
		e, err := chain.Check([]byte(line.Text))
		if err != nil || e.Number != line.Number || previous != "" && line.Before != previous {
			t.Errorf("%s: %v", text, err)
		}
		sum := sha256.Sum256([]byte(line.Text))
		previous = hex.EncodeToString(sum[:])
	}
	if chain.First.Number != 1 || chain.Last.Number != 40 {
		t.Errorf("lines %v to %v", chain.First, chain.Last)
	}
}

// TestMachineCertificate checks that the machine presents its certificate only to a receiver that
// accepts the issuer, and only if it is a certificate for clients. A machine without a cluster has
// no such certificate.
func TestMachineCertificate(t *testing.T) {
	ca, err := pki.NewCA("machines", time.Hour)
	check(t, err)
	other, err := pki.NewCA("others", time.Hour)
	check(t, err)
	both, err := ca.Issue(pki.Spec{CN: "m1", Usage: pki.Both, TTL: time.Hour})
	check(t, err)
	server, err := pki.SelfSigned(pki.Spec{CN: "m1", Usage: pki.Server, TTL: time.Hour})
	check(t, err)
	for _, c := range []struct {
		name  string
		leaf  *pki.Leaf
		knows *x509.Certificate // the CA that the receiver accepts
		shown bool              // the machine presents its certificate
	}{{"issuer accepted", both, ca.Cert, true}, {"another issuer accepted", both, other.Cert, false}, {"no cluster", server, server.Cert, false}} {
		dir := t.TempDir()
		cert, key := filepath.Join(dir, "c"), filepath.Join(dir, "k")
		check(t, os.WriteFile(cert, c.leaf.CertPEM(), 0o600))
		check(t, os.WriteFile(key, c.leaf.KeyPEM(), 0o600))
		asked := &tls.CertificateRequestInfo{AcceptableCAs: [][]byte{c.knows.RawSubject}, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}, Version: tls.VersionTLS13}
		got, err := machineCertificate(asked, cert, key)
		if err != nil || (len(got.Certificate) > 0) != c.shown {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestShippingThroughProxy checks that lines reach a receiver through the proxy of the site. The
// receiver has no CA in the configuration, so the CA of the site verifies it. The receiver itself
// must confirm the delivery, because the TCP connections of the machine end at the proxy.
func TestShippingThroughProxy(t *testing.T) {
	t.Run("json", func(t *testing.T) { shipThroughProxy(t, config.FormatJSON, `{"taken":{"audit":1},"orderly":true}`) })
	t.Run("otlp", func(t *testing.T) { shipThroughProxy(t, config.FormatOTLP, `{"taken":{"audit":1}}`) })
}

// shipThroughProxy sends a line in a format, and checks the position that is stored at the end.
func shipThroughProxy(t *testing.T, format config.LogFormat, position string) {
	l, err := audit.Open(t.TempDir(), audit.DefaultSize, audit.DefaultFiles)
	check(t, err)
	check(t, l.Append(time.Now(), audit.Call{Method: "/orlop.v1alpha1.Machine/Reboot", Status: "OK"}))
	a := newArchive(t)
	if format == config.FormatOTLP {
		a.ReceiveOTLP()
	}
	p := &egresstest.Proxy{Username: "machines", Password: "word", Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, a.Addr().String())
	}}
	proxy := httptest.NewServer(p)
	defer proxy.Close()
	dir := t.TempDir()
	m := New(Deps{
		Dir: func() string { return dir }, AuditLogs: func() (changes, refused *audit.Log) { return l, nil },
		Event: func(kind, message string) {
			if kind == "failure" || strings.Contains(message, "word") {
				t.Error(message)
			}
		},
	})
	to := a.receiver(t, "archive", config.SourceAudit)
	to.Address, to.CA, to.Format = config.HostPort{Host: "logs.example.com", Port: 6514}, config.Bundle{}, format
	c := Config{Machine: "m1", Receivers: []config.Receiver{to}}
	if err := m.set(t.Context(), c); err == nil || !strings.Contains(err.Error(), "receiver archive: no CA is given") {
		t.Errorf("without any CA: %v", err)
	}
	c.Egress = egress.Config{Proxy: strings.Replace(proxy.URL, "//", "//machines:word@", 1), CAs: string(a.CA.CertPEM())}
	check(t, m.set(t.Context(), c))
	a.wait(t, "audit", 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, m.Close(ctx))
	if got := p.Targets(); !slices.Equal(got, []string{"logs.example.com:6514"}) {
		t.Errorf("%q", got)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "archive.json")); err != nil || string(text) != position+"\n" {
		t.Errorf("%s, %v", text, err)
	}
}

// TestKubernetesSync checks that a receiver gets the audit log of Kubernetes as soon as the machine
// has a cluster. The files of this log are synced to disk even while the receiver is away. The loop
// that syncs them ends when no receiver of this log is configured, and at shutdown.
func TestKubernetesSync(t *testing.T) {
	dir, cluster := t.TempDir(), ""
	file, err := os.OpenFile(filepath.Join(dir, kubeaudit.File), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(t, err)
	defer file.Close()
	w, err := kubeaudit.NewWriter(dir, file)
	check(t, err)
	event := func() {
		_, err := w.Write([]byte("{\"kind\":\"Event\"}\n"))
		check(t, err)
	}
	event()
	m := New(Deps{
		Dir: func() string { return "" }, AuditLogs: func() (changes, refused *audit.Log) { return nil, nil },
		KubernetesAudit: func() string { return cluster }, Event: func(string, string) {},
	})
	a := newArchive(t)
	c := Config{Machine: "m1", Receivers: []config.Receiver{a.receiver(t, "first", config.SourceKubernetes)}}
	check(t, m.set(t.Context(), c))
	cluster = dir
	check(t, m.set(t.Context(), c))
	a.wait(t, "kubernetes-audit", 1)

	a.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	synced := m.kubernetes.log.Changed()
	event()
	select {
	case <-synced:
	case <-ctx.Done():
		t.Error("the files are not synced while the receiver is away")
	}
	ended := m.kubernetes.ended
	check(t, m.set(t.Context(), Config{Machine: "m1"}))
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("the loop that syncs the log runs although no receiver is configured")
	}
	check(t, m.set(t.Context(), c))
	ended = m.kubernetes.ended
	check(t, m.Close(ctx))
	select {
	case <-ended:
	default:
		t.Error("the loop that syncs the log runs after the shutdown")
	}
}

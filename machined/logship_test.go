package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kmsg"
	"github.com/orlop-os/orlop/pkg/logring"
	"github.com/orlop-os/orlop/pkg/logship"
	"github.com/orlop-os/orlop/pkg/pki"
)

// archive is a receiver of JSON lines, which stores the texts of each source.
type archive struct {
	ca    *pki.CA
	addr  netip.AddrPort
	texts *cell.Cell[map[string][]string]
}

func newArchive(t *testing.T) *archive {
	t.Helper()
	ca, err := pki.NewCA("archives", time.Hour)
	check(t, err)
	leaf, err := ca.Issue(pki.Spec{CN: "archive", Usage: pki.Server, DNS: []string{"archive"}, TTL: time.Hour})
	check(t, err)
	pair, err := tls.X509KeyPair(leaf.CertPEM(), leaf.KeyPEM())
	check(t, err)
	a := &archive{ca: ca, texts: cell.New(map[string][]string{})}
	a.addr = netip.MustParseAddrPort(listening(t, each(func(raw net.Conn) {
		conn := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{pair}})
		defer conn.Close()
		for lines := bufio.NewReader(conn); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var l struct{ Machine, Source, Kind, Text string }
			if err := json.Unmarshal(line, &l); err != nil || l.Machine != "m1" {
				t.Errorf("%s: %v", line, err)
			}
			a.texts.Update(func(all map[string][]string) map[string][]string {
				next := map[string][]string{l.Source: append(all[l.Source][:len(all[l.Source]):len(all[l.Source])], l.Text)}
				for source, texts := range all {
					if source != l.Source {
						next[source] = texts
					}
				}
				return next
			})
		}
	})))
	return a
}

// wait waits until n lines of a source have arrived, and returns them.
func (a *archive) wait(t *testing.T, source string, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all, err := cell.Wait(ctx, a.texts, func(all map[string][]string) bool { return len(all[source]) >= n })
	if err != nil {
		t.Fatalf("%s: %d lines; want %d", source, len(all[source]), n)
	}
	return all[source]
}

// receiver is the receiver in the form of the configuration.
func (a *archive) receiver(t *testing.T, name string, sources ...config.LogSource) config.Receiver {
	t.Helper()
	ca, err := config.ParseCertificate(string(a.ca.CertPEM()))
	check(t, err)
	return config.Receiver{
		Name: name, Address: config.HostPort{Host: a.addr.Addr().String(), Port: a.addr.Port()}, CA: config.NewBundle(ca), ServerName: "archive",
		Format: config.FormatJSON, Sources: sources,
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestShipping checks that receivers change with the configuration, that the audit log arrives with
// its chain, that a receiver gets only its sources, and that each connection ends in order at
// shutdown.
func TestShipping(t *testing.T) {
	l, err := audit.Open(t.TempDir(), audit.DefaultSize, audit.DefaultFiles)
	check(t, err)
	m := &machine{callRecords: &callRecords{changes: l}, events: newEventLog(), storageProblem: cell.New("a test")}
	first, second := newArchive(t), newArchive(t)
	record := func(n int) {
		for range n {
			m.record(audit.Call{Subject: "CN=é,O=<orlop>", Method: "/orlop.v1alpha1.Machine/Reboot", Status: "OK"})
		}
	}
	record(3)
	check(t, m.shipTo(t.Context(), "m1", []config.Receiver{first.receiver(t, "first", config.SourceAudit)}))
	first.wait(t, "audit", 3)
	record(2)
	both := []config.Receiver{second.receiver(t, "second", config.SourceEvents, config.SourceAudit), first.receiver(t, "first", config.SourceAudit)}
	check(t, m.shipTo(t.Context(), "m1", both))
	m.events.add("disk", "operation", "grow DATA")
	second.wait(t, "audit", 5)
	events := strings.Join(second.wait(t, "events", 3), "\n")
	for _, want := range []string{"log-shipping: send to receiver first at 127.0.0.1:", "log-shipping: send to receiver second at", "disk: grow DATA"} {
		if strings.Count(events, want) != 1 {
			t.Errorf("the events want %q once:\n%s", want, events)
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
	states, err := m.logShipping.states()
	check(t, err)
	if len(states) != 2 || states[0].Name != "second" || states[1].Sent != 5 || states[1].Pending != 0 || states[1].Connected.IsZero() {
		t.Errorf("%+v", states)
	}

	check(t, m.shipTo(t.Context(), "m1", both[:1]))
	record(1)
	second.wait(t, "audit", 6)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, m.logShipping.close(ctx))
	if all, _ := first.texts.Get(); len(all["audit"]) != 5 || len(all["events"]) > 0 {
		t.Errorf("a receiver that is not configured has got %v", all)
	}
	check(t, m.shipTo(t.Context(), "m1", both)) // during the shutdown no sender starts
	if states, err = m.logShipping.states(); len(states) != 1 || !states[0].Connected.IsZero() || err != nil {
		t.Errorf("%+v, %v", states, err)
	}
}

// TestRecordBegunAnew checks that a cursor of a former record does not block a restarted record.
func TestRecordBegunAnew(t *testing.T) {
	l, err := audit.Open(t.TempDir(), audit.DefaultSize, audit.DefaultFiles)
	check(t, err)
	check(t, l.Append(time.Now(), audit.Call{Status: "PermissionDenied"}))
	source, stop := auditSource("audit", l), fmt.Errorf("stop")
	for _, after := range []uint64{0, 4711} {
		err := source.Follow(t.Context(), func(string) uint64 { return after }, func(l logship.Record) error {
			if l.Number != 1 || l.Boot != "" || l.Severity != severityNotice {
				t.Errorf("%+v", l)
			}
			return stop
		})
		if err != stop || source.Newest()["audit"] != 1 {
			t.Error(err)
		}
	}
}

// TestRings checks that the line numbers of a service continue in its next log, and that unread
// lines leave a gap.
func TestRings(t *testing.T) {
	var all rings
	write := func(r *logring.Ring, lines ...string) *logring.Ring {
		for _, l := range lines {
			fmt.Fprintln(r, l)
		}
		return r
	}
	all.set("apid", write(logring.New(10, 1000), "a", "b"))
	all.set("apid", write(all.get()["apid"].ring, "c"))
	if n := all.get()["apid"]; n.before != 0 || n.newest() != 3 {
		t.Errorf("%+v", n)
	}
	all.set("apid", write(logring.New(10, 1000), "d", "e"))
	n := all.get()["apid"]
	if n.newest() != 5 {
		t.Errorf("%+v", n)
	}
	for after, want := range map[uint64]string{0: "4d 5e", 2: "4d 5e", 4: "5e"} {
		var got []string
		n.tail(t.Context(), after, func(l logring.Line) error {
			got = append(got, fmt.Sprint(n.before+l.Seq, l.Text))
			if l.Seq == 2 {
				return fmt.Errorf("stop")
			}
			return nil
		})
		if strings.Join(got, " ") != want {
			t.Errorf("after %d: %v; want %s", after, got, want)
		}
	}
}

// TestKernelLines checks that kernel records have increasing numbers above 0, and times in the
// past.
func TestKernelLines(t *testing.T) {
	if _, err := kmsg.Tail(1); err != nil {
		t.Skip("the kernel's log cannot be read here")
	}
	source, stop, last, count := kernelSource("b"), fmt.Errorf("stop"), uint64(0), 0
	newest := source.Newest()["kernel"]
	if newest < 2 {
		t.Skip("the kernel has not written two lines yet")
	}
	err := source.Follow(t.Context(), func(string) uint64 { return newest - 2 }, func(l logship.Record) error {
		if l.Number < newest-1 || l.Number <= last || l.Time.After(time.Now()) {
			t.Errorf("after %d: %+v", last, l)
		}
		last = l.Number
		if count++; l.Number >= newest {
			return stop
		}
		return nil
	})
	if err != stop || count < 1 || count > 2 {
		t.Errorf("%d lines, %v", count, err)
	}
}

// TestMachineCertificate checks that a receiver gets the machine's certificate only if it trusts
// the issuer.
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
		knows *x509.Certificate
		shown bool
	}{{"knows the CA", both, ca.Cert, true}, {"knows another", both, other.Cert, false}, {"no cluster", server, server.Cert, false}} {
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

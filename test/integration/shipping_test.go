package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/machined/logship/logshiptest"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/kubeaudit"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/otlp/otlptest"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/vm"
)

// receiverPort is the TCP port of syslog over TLS (RFC 5425, section 4.1).
const receiverPort = 6514

// receiver is a host of the closed network that receives logs from the machines of a cluster.
type receiver struct {
	*logshiptest.Receiver
	host  *vm.Host
	lines *cell.Cell[[]string]
}

// newReceiver returns a receiver that admits only clients with a certificate of a CA in machines.
// The caller starts it.
func newReceiver(network *vm.Network, machines *x509.CertPool) (*receiver, error) {
	host, err := network.NewHost("archive", netip.Addr{})
	if err != nil {
		return nil, err
	}
	r, err := logshiptest.New(func() (net.Listener, error) { return host.Listen(receiverPort) }, pki.Spec{CN: "archive", IPs: []netip.Addr{host.Addr()}})
	if err != nil {
		return nil, err
	}
	r.TLS.ClientCAs, r.TLS.ClientAuth = machines, tls.RequireAndVerifyClientCert
	lines := cell.New([]string(nil))
	r.Line = func(line string) {
		lines.Update(func(all []string) []string { return append(slices.Clip(all), line) })
	}
	return &receiver{r, host, lines}, nil
}

// texts returns the texts of the lines of a source, in the order of their first arrival and without
// repetitions.
func texts(lines []string, source string) (list []string) {
	seen := map[uint64]bool{}
	for _, line := range lines {
		var l struct {
			Source, Text string
			Number       uint64
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Source == source && !seen[l.Number] {
			seen[l.Number] = true
			list = append(list, l.Text)
		}
	}
	return list
}

const receiverUsage = "receiver start FILE | otlp FILE | kill | again | has DEADLINE REGEXP | pod DEADLINE POD TEXT NUMBER | audit DEADLINE | requests DEADLINE REGEXP"

func (s *story) receiverVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 5, receiverUsage)
	r := s.receiver
	if r == nil && args[0] != "start" && args[0] != "otlp" {
		ts.Fatalf("receiver: no receiver runs; begin with: receiver start FILE")
	}
	switch {
	case (args[0] == "start" || args[0] == "otlp") && len(args) == 2:
		s.startReceiver(ts, args[0] == "otlp", args[1])
	case args[0] == "pod" && len(args) == 5:
		s.receivedPod(ts, args[1], args[2], args[3], args[4])
	case args[0] == "kill" && len(args) == 1:
		r.Kill()
		s.note("the receiver is killed")
	case args[0] == "again" && len(args) == 1:
		ts.Check(r.Start())
		s.note("the receiver is back")
	case args[0] == "has" && len(args) == 3:
		pattern, err := regexp.Compile(args[2])
		ts.Check(err)
		s.received(ts, args[1], args[2], func(lines []string) bool { return slices.ContainsFunc(lines, pattern.MatchString) })
	case args[0] == "audit" && len(args) == 2:
		want := strings.Split(strings.TrimSpace(s.ask("orlopctl", "audit", "list", "--record", "changes", "-o", "json")), "\n")
		got := texts(s.received(ts, args[1], "the whole audit log", func(lines []string) bool { return len(texts(lines, "audit")) >= len(want) }), "audit")
		if !slices.Equal(got[:len(want)], want) {
			ts.Fatalf("receiver: the received audit log is\n%s\nthe audit log of the machine is\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		var chain audit.Chain
		for _, line := range got {
			_, err := chain.Check([]byte(line))
			ts.Check(err)
		}
		s.note("the receiver has calls %d to %d, as they were recorded", chain.First.Number, chain.Last.Number)
	case args[0] == "requests" && len(args) == 3:
		s.receivedRequests(ts, args[1], args[2])
	default:
		ts.Fatalf("usage: %s", receiverUsage)
	}
}

// startReceiver starts the receiver, and writes the patch that ships logs to it.
func (s *story) startReceiver(ts *testscript.TestScript, otlp bool, file string) {
	machines := x509.NewCertPool()
	// The verb trust has written this file.
	machines.AppendCertsFromPEM([]byte(ts.ReadFile("machine-ca.crt")))
	r, err := newReceiver(s.network, machines)
	ts.Check(err)
	to := map[string]any{"name": "archive", "address": fmt.Sprintf("%s:%d", r.host.Addr(), receiverPort), "ca": string(r.CA.CertPEM())}
	logging := map[string]any{"receivers": []any{to}}
	if otlp {
		r.ReceiveOTLP()
		to["format"], to["sources"] = "otlp", []string{"audit", "kubernetes-audit", "events", "services", "kernel", "pods"}
		logging["pods"] = map[string]any{}
	}
	ts.Check(r.Start())
	s.receiver = r
	patch, err := yaml.Marshal(map[string]any{"kind": "Machine", "spec": map[string]any{"logging": logging}})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(file), patch, 0o600))
	s.note("a receiver of logs is at %s", r.host.Addr())
}

// receivedPod waits for all numbered lines of a pod, and checks their order. After an outage a line
// can arrive twice. It is then counted once.
func (s *story) receivedPod(ts *testscript.TestScript, deadline, pod, text, number string) {
	n, err := strconv.Atoi(number)
	ts.Check(err)
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("%s %d", text, i+1))
	}
	of := func(lines []string) (got []string) {
		for _, line := range lines {
			var l otlptest.Line
			if json.Unmarshal([]byte(line), &l) == nil && l.Source == "" && l.Pod["k8s.pod.name"] == pod && strings.HasPrefix(l.Text, text+" ") && !slices.Contains(got, l.Text) {
				got = append(got, l.Text)
			}
		}
		return got
	}
	got := of(s.received(ts, deadline, fmt.Sprintf("the last line of pod %s", pod), func(lines []string) bool { return len(of(lines)) >= n }))
	if !slices.Equal(got, want) {
		ts.Fatalf("receiver: the received lines of pod %s are incomplete or in a wrong order:\n%s", pod, strings.Join(got, "\n"))
	}
	s.note("the receiver has %d lines of pod %s", n, pod)
}

// receivedRequests waits until a line of the Kubernetes audit log matches, and verifies the chain
// of all lines of this log. If lines are lost, the machine sends a line with the number of missing
// lines, which breaks the chain.
func (s *story) receivedRequests(ts *testscript.TestScript, deadline, text string) {
	pattern, err := regexp.Compile(text)
	ts.Check(err)
	const source = "kubernetes-audit"
	got := texts(s.received(ts, deadline, text, func(lines []string) bool { return slices.ContainsFunc(texts(lines, source), pattern.MatchString) }), source)
	chain := audit.Chain{Record: kubeaudit.Record}
	for _, line := range got {
		_, err := chain.Check([]byte(line))
		ts.Check(err)
	}
	s.note("the receiver has requests %d to %d of Kubernetes, as they were recorded", chain.First.Number, chain.Last.Number)
}

// received waits until the function enough returns true for the received lines, and returns the
// lines. At the deadline, it fails the story with a message in which the text what names the
// expected lines.
func (s *story) received(ts *testscript.TestScript, deadline, what string, enough func(lines []string) bool) []string {
	ctx, cancel := context.WithTimeout(context.Background(), s.lasts(deadlineOf(ts, deadline)))
	defer cancel()
	lines, err := cell.Wait(ctx, s.receiver.lines, enough)
	if err != nil {
		ts.Fatalf("receiver: %s did not arrive within %s; the last of the %d received lines are\n%s", what, deadline, len(lines), lastLines(strings.Join(lines, "\n"), 10))
	}
	return lines
}

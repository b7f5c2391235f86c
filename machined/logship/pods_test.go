package logship

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	"golang.org/x/time/rate"

	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/otlp"
)

// podlogd is a client that calls a Manager as the process podlogd does.
type podlogd struct {
	t      *testing.T
	client *http.Client
}

func (p podlogd) call(method, path string, body []byte, want int) (text string, header http.Header) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), method, nodespec.PodLogsURL+path, bytes.NewReader(body))
	check(p.t, err)
	response, err := p.client.Do(request)
	check(p.t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	check(p.t, err)
	if response.StatusCode != want {
		p.t.Errorf("%s %s: %s %s; want %d", method, path, response.Status, answer, want)
	}
	return string(answer), response.Header
}

// podRecords returns a request with n records of a pod, each with the given text.
func podRecords(t *testing.T, text string, n int) []byte {
	t.Helper()
	b := otlp.Batch{Scope: "test"}
	for range n {
		b.Add("p", func() []*common.KeyValue {
			return append(otlp.Resource("m1", "c"), otlp.String("k8s.pod.name", "p"))
		}, otlp.NewRecord(time.Now(), time.Now(), text))
	}
	body, err := otlp.Encode(b.Data())
	check(t, err)
	return body
}

// TestPods checks the calls of podlogd. Only a receiver with the source pods gets the records of
// pods, over a separate connection. The chain of the audit log stays intact although a pod writes
// copies of records of the audit log (forged). The positions of podlogd are stored for each
// receiver, and those of former receivers are removed.
func TestPods(t *testing.T) {
	l, err := audit.Open(t.TempDir(), audit.DefaultSize, audit.DefaultFiles)
	check(t, err)
	socket, positions := filepath.Join(t.TempDir(), "socket"), filepath.Join(t.TempDir(), "positions")
	mounted := false
	m := New(Deps{
		Dir: func() string { return "" }, AuditLogs: func() (changes, refused *audit.Log) { return l, nil }, Event: func(string, string) {},
		Pods: PodDeps{
			Positions: func() string {
				if !mounted {
					return ""
				}
				return positions
			},
			Listen: func() (net.Listener, error) { return net.Listen("unix", socket) },
		},
	})
	a := newArchive(t)
	a.ReceiveOTLP()
	with := a.receiver(t, "archive", config.SourceAudit, config.SourcePods)
	without := a.receiver(t, "other", config.SourceAudit)
	with.Format, without.Format = config.FormatOTLP, config.FormatOTLP
	check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: []config.Receiver{without}}))
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket for podlogd exists although no receiver has the source pods")
	}
	check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: []config.Receiver{with, without}}))
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	p := podlogd{t, &http.Client{Transport: transport}}

	p.call("GET", "archive/positions", nil, http.StatusServiceUnavailable)
	mounted = true
	if text, _ := p.call("GET", "archive/positions", nil, http.StatusOK); text != "" {
		t.Error(text)
	}
	p.call("PUT", "archive/positions", []byte("{}"), http.StatusOK)
	if text, _ := p.call("GET", "archive/positions", nil, http.StatusOK); text != "{}" {
		t.Error(text)
	}
	p.call("PUT", "archive/positions", make([]byte, nodespec.MaxPodLogsBody+1), http.StatusInternalServerError)
	m.all[0].pods.writes = rate.NewLimiter(0, 1)
	p.call("PUT", "archive/positions", []byte("{}"), http.StatusOK)
	if text, _ := p.call("PUT", "archive/positions", []byte("[]"), http.StatusInternalServerError); !strings.Contains(text, "too often") {
		t.Error(text)
	}
	for _, path := range []string{"other", "none", "..%2farchive"} {
		p.call("PUT", path+"/positions", []byte("{}"), http.StatusNotFound)
		p.call("POST", path+"/v1/logs?records=1", nil, http.StatusNotFound)
	}
	for _, records := range []string{"", "0", "-1", "x", "5000"} {
		p.call("POST", "archive/v1/logs?records="+records, nil, http.StatusUnprocessableEntity)
	}

	check(t, l.Append(time.Now(), audit.Call{Method: "/orlop.v1alpha1.Machine/Reboot", Status: "OK"}))
	forged := a.wait(t, "audit", 2)[0] // two lines, because both receivers have the same address
	for n := range 3 {
		p.call("POST", "archive/v1/logs?records="+strconv.Itoa(n+1), podRecords(t, forged, n+1), http.StatusNoContent)
	}
	check(t, l.Append(time.Now(), audit.Call{Method: "/orlop.v1alpha1.Machine/Reboot", Status: "OK"}))
	var chain audit.Chain
	seen := map[string]bool{}
	for _, line := range a.wait(t, "audit", 4) {
		if !seen[line] {
			_, err := chain.Check([]byte(line))
			check(t, err)
		}
		seen[line] = true
	}
	lines, _ := a.lines.Get()
	pods := 0
	for _, line := range lines {
		if strings.Contains(line, `"pod":{`) {
			pods++
		}
	}
	states, err := m.States()
	check(t, err)
	if pods != 6 || len(states) != 3 || states[1].Name != "archive/pods" || states[1].Sent != 6 || states[1].Connected.IsZero() {
		t.Errorf("%d records of pods; %+v", pods, states)
	}

	a.Kill()
	text, _ := p.call("POST", "archive/v1/logs?records=1", podRecords(t, "late", 1), http.StatusServiceUnavailable)
	states, err = m.States()
	check(t, err)
	if !strings.HasPrefix(text, with.Address.String()+": ") || !states[1].Connected.IsZero() || states[1].Problem == "" || states[1].Sent != 6 {
		t.Errorf("%s: %+v", text, states[1])
	}
	// This configuration could be on trial, so its activation retains the positions. The next
	// activation removes them.
	check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: []config.Receiver{without}}))
	p.call("POST", "archive/v1/logs?records=1", podRecords(t, "late", 1), http.StatusNotFound)
	for _, want := range []bool{true, false} {
		if _, err := os.Stat(filepath.Join(positions, "archive.json")); (err == nil) != want {
			t.Errorf("the file with the positions exists: %v; want %v", err == nil, want)
		}
		check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: []config.Receiver{without}}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, m.Close(ctx))
}

// TestPodsRefused checks that podlogd gets the status, and the time after which it may try again,
// from a receiver that answers 429 with Retry-After.
func TestPodsRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	m := New(Deps{
		Dir: func() string { return "" }, AuditLogs: func() (changes, refused *audit.Log) { return nil, nil }, Event: func(string, string) {},
		Pods: PodDeps{Positions: func() string { return "" }, Listen: func() (net.Listener, error) { return net.Listen("unix", socket) }},
	})
	a := newArchive(t)
	a.ServeHTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "17")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	to := a.receiver(t, "archive", config.SourcePods)
	to.Format = config.FormatOTLP
	check(t, m.set(t.Context(), Config{Machine: "m1", Receivers: []config.Receiver{to}}))
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	_, err := otlp.Post(t.Context(), &http.Client{Transport: transport}, nodespec.PodLogsURL+"archive/v1/logs?records=1", podRecords(t, "x", 1), 1)
	refusal, ok := err.(*otlp.Refusal)
	if !ok || refusal.Wait != 17*time.Second || refusal.Status != http.StatusServiceUnavailable || !strings.Contains(refusal.Text, "429") {
		t.Errorf("%v", err)
	}
}

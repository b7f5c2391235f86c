package sender

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"

	"github.com/orlop-os/orlop/machined/logship/logshiptest"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/otlp"
	"github.com/orlop-os/orlop/pkg/otlp/otlptest"
	"github.com/orlop-os/orlop/pkg/pki"
)

// otlpReceiver answers the first requests with the statuses of a script, and all further requests
// with success.
type otlpReceiver struct {
	*logshiptest.Receiver
	lines *cell.Cell[[]otlptest.Line] // the lines of successful requests
	asked *cell.Cell[int]             // number of requests
}

func newOTLPReceiver(t *testing.T, answers ...int) *otlpReceiver {
	t.Helper()
	base, err := logshiptest.New(func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }, pki.Spec{CN: "logs", IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	check(t, err)
	r := &otlpReceiver{base, cell.New([]otlptest.Line(nil)), cell.New(0)}
	base.ServeHTTP(otlptest.Handler(func(request *collector.ExportLogsServiceRequest) (*collector.ExportLogsServiceResponse, int) {
		n, _ := r.asked.Get()
		r.asked.Set(n + 1)
		if n < len(answers) && answers[n] != http.StatusOK {
			return nil, answers[n]
		}
		r.lines.Update(func(all []otlptest.Line) []otlptest.Line {
			return append(slices.Clip(all), otlptest.Lines(request)...)
		})
		return &collector.ExportLogsServiceResponse{}, http.StatusOK
	}))
	check(t, r.Start())
	t.Cleanup(r.Kill)
	return r
}

// sender returns a sender to this receiver, with short delays. Its sources are the stores from.
func (r *otlpReceiver) sender(t *testing.T, cursors string, events *cell.Cell[[]string], from ...*store) *Sender {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(r.CA.Cert)
	c := Config{
		Name: "archive", Address: r.Addr().String(), TLS: &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}, Cursors: cursors,
		Batch: func(batch []Record) *logs.LogsData { return OTLP("m1", batch, time.Now()) },
		Event: func(kind, message string) {
			events.Update(func(all []string) []string { return append(slices.Clip(all), kind+": "+message) })
		},
	}
	for _, one := range from {
		c.Sources = append(c.Sources, one.source())
	}
	s := New(c)
	s.times.gather, s.times.minBackoff, s.times.maxBackoff = time.Millisecond, 3*time.Millisecond, 9*time.Millisecond
	return s
}

// sendTo starts a sender to this receiver, and returns the sender and a function that stops it.
func (r *otlpReceiver) sendTo(t *testing.T, cursors string, events *cell.Cell[[]string], from *store) (*Sender, func()) {
	t.Helper()
	s := r.sender(t, cursors, events, from)
	stop := run(t, s)
	t.Cleanup(stop)
	return s, stop
}

// wait waits until the receiver has n lines or more, and returns their numbers.
func (r *otlpReceiver) wait(t *testing.T, n int) (numbers []uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	lines, err := cell.Wait(ctx, r.lines, func(all []otlptest.Line) bool { return len(all) >= n })
	if err != nil {
		t.Fatalf("%d lines; want %d", len(lines), n)
	}
	for _, l := range lines {
		if l.Machine != "m1" || l.Source != "audit" || l.Text != fmt.Sprint("line ", l.Number) {
			t.Errorf("%+v", l)
		}
		numbers = append(numbers, l.Number)
	}
	return numbers
}

func upTo(n uint64) (all []uint64) {
	for i := range n {
		all = append(all, i+1)
	}
	return all
}

// TestPassEvents checks that requests which alternately fail and succeed add only two events, a
// loss and a connection. A loss after a longer time with a connection (quiet) adds an event again.
func TestPassEvents(t *testing.T) {
	const refused = http.StatusServiceUnavailable
	r := newOTLPReceiver(t, refused, http.StatusOK, refused, http.StatusOK, refused, http.StatusOK, refused)
	events := cell.New([]string(nil))
	s := r.sender(t, "", events)
	body, err := otlp.Encode(&logs.LogsData{})
	check(t, err)
	pass := func(want bool) {
		t.Helper()
		if err := s.Pass(t.Context(), body, 1); (err == nil) != want {
			t.Errorf("%v", err)
		}
	}
	for range 3 {
		pass(false)
		pass(true)
	}
	if all, _ := events.Get(); len(all) != 2 {
		t.Errorf("%q; want a loss and a connection", all)
	}
	s.times.quiet = 0
	pass(false)
	if all, _ := events.Get(); len(all) != 3 {
		t.Errorf("%q; want another loss", all)
	}
}

// TestBatches checks that records are sent again after the statuses 503 and 401, and that accepted
// records are sent once. A second sender with the same cursors continues after the last record.
func TestBatches(t *testing.T) {
	r := newOTLPReceiver(t, http.StatusServiceUnavailable, http.StatusUnauthorized)
	from, events, cursors := newStore("audit", "", 1000), cell.New([]string(nil)), filepath.Join(t.TempDir(), "archive.json")
	from.add(600)
	s, stop := r.sendTo(t, cursors, events, from)
	if got := r.wait(t, 600); !slices.Equal(got, upTo(600)) {
		t.Errorf("got %v", got)
	}
	stop()
	if state := s.State(); state.Pending != 0 || state.Dropped != 0 || state.Rejected != 0 {
		t.Errorf("%+v", state)
	}
	from.add(10)
	_, stop = r.sendTo(t, cursors, events, from)
	if got := r.wait(t, 610); !slices.Equal(got, upTo(610)) {
		t.Errorf("got %v", got)
	}
	stop()
	all, _ := events.Get()
	want := []string{
		fmt.Sprintf("failure: receiver archive: unreachable, retrying: %s: the receiver answers 503 Service Unavailable: not now", r.Addr()),
		fmt.Sprintf("state: receiver archive: connected to %s", r.Addr()),
		fmt.Sprintf("state: receiver archive: connected to %s", r.Addr()),
	}
	if !slices.Equal(all, want) {
		t.Errorf("events %q; want %q", all, want)
	}
}

// TestRejected checks that records which the receiver rejects with status 400 are counted and not
// sent again, and that two rejections add only one event.
func TestRejected(t *testing.T) {
	r := newOTLPReceiver(t, http.StatusBadRequest, http.StatusBadRequest)
	from, events := newStore("audit", "", 1000), cell.New([]string(nil))
	from.add(maxBatch * 2)
	s, stop := r.sendTo(t, "", events, from)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, err := cell.Wait(ctx, r.asked, func(n int) bool { return n >= 2 })
	check(t, err)
	// A batch can be smaller than maxBatch. Then the records of a third batch are accepted.
	from.add(1)
	_, err = cell.Wait(ctx, r.lines, func(all []otlptest.Line) bool {
		return len(all) > 0 && all[len(all)-1].Number == maxBatch*2+1
	})
	check(t, err)
	stop()
	lines, _ := r.lines.Get()
	if state := s.State(); int(state.Rejected)+len(lines) != maxBatch*2+1 || state.Rejected == 0 || state.Dropped != 0 {
		t.Errorf("%+v, and %d lines arrived", state, len(lines))
	}
	all, _ := events.Get()
	if want := "failure: receiver archive: rejects records, which are not sent again: the receiver answers 400 Bad Request: not now"; len(all) != 2 || all[0] != want {
		t.Errorf("events %q; want %q", all, want)
	}
}

// TestLastBatch checks that Run delivers the records of an incomplete batch before it ends.
func TestLastBatch(t *testing.T) {
	r := newOTLPReceiver(t)
	s := r.sender(t, "", cell.New([]string(nil)))
	s.times.gather = testTimeout // gather waits for more records until its context ends
	ctx, cancel := context.WithCancel(t.Context())
	lines, gathered := make(chan Record), make(chan []Record)
	go func() { gathered <- s.gather(ctx, lines) }()
	for n := range uint64(3) {
		lines <- Record{Source: "audit", Number: n + 1, Text: fmt.Sprint("line ", n+1)}
	}
	cancel()
	check(t, s.export(ctx, <-gathered))
	if got := r.wait(t, 3); !slices.Equal(got, upTo(3)) {
		t.Errorf("got %v", got)
	}
}

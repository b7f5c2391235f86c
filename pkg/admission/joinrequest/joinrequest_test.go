package joinrequest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// names returns the names of the machines, separated by blanks.
func names(l []Machine) string {
	var out []string
	for _, m := range l {
		out = append(out, m.Name)
	}
	return strings.Join(out, " ")
}

// TestApproveAndDeny checks the state of join requests while two machines repeat them and an
// operator approves and denies them.
func TestApproveAndDeny(t *testing.T) {
	var l List
	w1 := Machine{Name: "w1", Address: "10.0.0.21", Key: "sha256:11", Request: []byte("1")}
	w2 := Machine{Name: "w2", Address: "10.0.0.22", Key: "sha256:22", Request: []byte("2")}
	ask := func(m Machine, at time.Time) Answer {
		t.Helper()
		var a Answer
		l, a = l.Record(m, at)
		return a
	}
	if a := ask(w2, start.Add(time.Second)); a.State != Pending {
		t.Errorf("%+v", a)
	}
	ask(w1, start)
	ask(w2, start.Add(2*time.Second))
	if got := names(l.Pending(start)); got != "w1 w2" {
		t.Errorf("pending requests: %s", got)
	}
	// Find needs the name and the key of the same request.
	if _, err := l.Find("w1", "sha256:22", start); err == nil || !strings.Contains(err.Error(), "requests the name w2") {
		t.Errorf("%v", err)
	}
	if _, err := l.Find("w1", "sha256:33", start); err == nil || !strings.Contains(err.Error(), "has another fingerprint") {
		t.Errorf("%v", err)
	}
	if _, err := l.Find("w3", "sha256:33", start); err == nil || !strings.Contains(err.Error(), "no join request here") {
		t.Errorf("%v", err)
	}
	// An approved machine gets its ticket with each request until the ticket expires; then the
	// request is pending again.
	m, err := l.Find("w1", "sha256:11", start)
	if err != nil || string(m.Request) != "1" {
		t.Fatalf("%v, %+v", err, m)
	}
	ends := start.Add(time.Hour)
	l = l.Approved(m.Key, []byte("ticket"), ends)
	for range 2 {
		if a := ask(w1, start.Add(time.Minute)); a.State != Approved || string(a.Certificate) != "ticket" {
			t.Errorf("%+v", a)
		}
	}
	if got := names(l.Pending(start.Add(time.Minute))); got != "w2" {
		t.Errorf("pending requests: %s", got)
	}
	if a := ask(w1, ends.Add(-expireAfter/2)); a.State != Approved {
		t.Errorf("%+v", a)
	}
	if a := ask(w1, ends); a.State != Pending || a.Certificate != nil {
		t.Errorf("%+v", a)
	}
	// A request of the same machine with another name is another request, which is not approved.
	l = l.Approved(m.Key, []byte("ticket"), ends.Add(time.Hour))
	other := w1
	other.Name = "w9"
	if a := ask(other, ends); a.State != Pending {
		t.Errorf("%+v", a)
	}
	// A denied machine is not listed any more, with any name. An operator can still approve the
	// machine. A denial ends after denialTTL.
	l = l.Denied(w1.Key, ends)
	if a := ask(w1, ends.Add(time.Hour)); a.State != Denied || a.Reason == "" {
		t.Errorf("%+v", a)
	}
	if got := names(l.Pending(ends.Add(time.Hour))); got != "" {
		t.Errorf("pending requests: %s", got)
	}
	if _, err := l.Find("w1", w1.Key, ends.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	l = l.Approved(w1.Key, []byte("ticket"), ends.Add(2*time.Hour))
	if a := ask(w1, ends.Add(time.Hour)); a.State != Approved {
		t.Errorf("%+v", a)
	}
	l = l.Denied(w1.Key, ends)
	if a := ask(w1, ends.Add(time.Hour+denialTTL)); a.State != Pending {
		t.Errorf("%+v", a)
	}
}

// TestExpiry checks that a pending request expires after expireAfter without a repetition. An
// approved request does not expire before its ticket.
func TestExpiry(t *testing.T) {
	l, _ := List(nil).Record(Machine{Name: "w1", Key: "sha256:11"}, start)
	if got := names(l.Pending(start.Add(expireAfter - time.Second))); got != "w1" {
		t.Errorf("pending requests: %q", got)
	}
	if got := names(l.Pending(start.Add(expireAfter))); got != "" {
		t.Errorf("pending requests: %q", got)
	}
	// An approved machine may repeat its request after a longer time.
	l = l.Approved("sha256:11", []byte("ticket"), start.Add(time.Hour))
	if _, a := l.Record(Machine{Name: "w1", Key: "sha256:11"}, start.Add(30*time.Minute)); a.State != Approved {
		t.Errorf("%+v", a)
	}
}

// TestApprovedAreNotCounted checks that approved machines do not count for the limit of requests
// from one address.
func TestApprovedAreNotCounted(t *testing.T) {
	var l List
	for i := range 2 * maxPerAddress {
		var a Answer
		key := fmt.Sprint("sha256:", i)
		if l, a = l.Record(Machine{Name: "w", Address: "10.0.0.9", Key: key}, start); a.State != Pending {
			t.Errorf("%d: %+v", i, a)
		}
		l = l.Approved(key, []byte("ticket"), start.Add(time.Hour))
	}
}

// TestBounds checks the limits of a list: pending requests per address and in total, and denied
// machines.
func TestBounds(t *testing.T) {
	var l List
	var a Answer
	for i := range maxPerAddress + 1 {
		l, a = l.Record(Machine{Name: "w", Address: "10.0.0.9", Key: fmt.Sprint("a", i)}, start)
		if want := map[bool]State{true: Pending, false: Rejected}[i < maxPerAddress]; a.State != want {
			t.Errorf("%d: %+v", i, a)
		}
	}
	for i := range maxPending {
		l, a = l.Record(Machine{Name: "w", Address: fmt.Sprint("10.0.1.", i), Key: fmt.Sprint("b", i)}, start)
	}
	if a.State != Rejected || len(l) != maxPending {
		t.Errorf("%+v, %d", a, len(l))
	}
	// A listed machine may repeat its request.
	if l, a = l.Record(Machine{Name: "w", Address: "10.0.1.0", Key: "b0"}, start); a.State != Pending {
		t.Errorf("%+v", a)
	}
	for i := range 2 * maxDenied {
		l = l.Denied(fmt.Sprint("c", i), start)
	}
	if len(l) != maxDenied {
		t.Errorf("%d machines are listed as denied, want maxDenied", len(l))
	}
	// Denied machines do not count for the limit of pending requests.
	var denied List
	for i := range maxPending {
		denied = denied.Denied(fmt.Sprint("d", i), start)
	}
	if _, a = denied.Record(Machine{Name: "w", Key: "e"}, start); a.State != Pending {
		t.Errorf("%+v", a)
	}
}

// TestOverAConnection checks that Serve receives a request that Send has sent, and that Send
// returns the answer of Serve. Send rejects an invalid answer.
func TestOverAConnection(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	served := make(chan error, 1)
	go func() {
		served <- Serve(there, func(r Request) Answer {
			return Answer{State: Approved, Certificate: append([]byte(r.Name), r.CSR...)}
		})
	}()
	a, err := Send(here, Request{Name: "w1", CSR: []byte{1, 2}})
	if err != nil || a.State != Approved || !bytes.Equal(a.Certificate, []byte("w1\x01\x02")) {
		t.Errorf("%+v, %v", a, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	for _, text := range []string{"", "{}\n", `{"standing":"king"}` + "\n", strings.Repeat(" ", maxMessage) + `{"standing":"waits"}`} {
		if a, err := Send(struct {
			io.Reader
			io.Writer
		}{strings.NewReader(text), io.Discard}, Request{}); err == nil {
			t.Errorf("Send accepts the invalid answer %.20q: %+v", text, a)
		}
	}
}

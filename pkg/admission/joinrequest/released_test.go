package joinrequest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedMessages checks both sides of the protocol against the messages of version 0.1.0.
func TestReleasedMessages(t *testing.T) {
	releasedtest.CompareFile(t, "protocol.txt", []byte(Protocol+"\n"))
	request := releasedtest.Read(t, "request.json")
	want := Request{Name: "w1", CSR: []byte{1, 2, 3}}
	states := []State{Pending, Approved, Denied, Rejected}
	for line := range strings.Lines(string(releasedtest.Read(t, "answers.jsonl"))) {
		var sent bytes.Buffer
		a, err := Send(stranger{strings.NewReader(line), &sent}, want)
		if err != nil || a.State != states[0] {
			t.Errorf("answer %+v, error %v, want the state %s", a, err, states[0])
		}
		states = states[1:]
		releasedtest.CompareFile(t, "request.json", sent.Bytes())
		var answered bytes.Buffer
		err = Serve(stranger{bytes.NewReader(request), &answered}, func(r Request) Answer {
			if r.Name != want.Name || !bytes.Equal(r.CSR, want.CSR) {
				t.Errorf("Serve passed another request than the released one: %+v", r)
			}
			return a
		})
		if err != nil || answered.String() != line {
			t.Errorf("%v: the present version wrote %s, the released one %s", err, &answered, line)
		}
	}
	if len(states) > 0 {
		t.Errorf("answers.jsonl has no answer with the states %s", states)
	}
}

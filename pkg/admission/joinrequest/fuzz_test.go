package joinrequest

import (
	"bytes"
	"io"
	"testing"
)

// stranger is the connection of an untrusted client. It has a fixed input, and an output for the
// response.
type stranger struct {
	io.Reader
	io.Writer
}

// FuzzServe feeds arbitrary input to Serve, because untrusted clients can reach the server. Serve
// must handle one request at most.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"name":"w1"}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, input []byte) {
		requests := 0
		_ = Serve(stranger{bytes.NewReader(input), io.Discard}, func(Request) Answer { requests++; return Answer{} })
		if requests > 1 {
			t.Errorf("Serve handles %d requests of one connection", requests)
		}
	})
}

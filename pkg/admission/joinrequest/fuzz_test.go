package joinrequest

import (
	"bytes"
	"io"
	"testing"
)

// stranger is an untrusted client: a fixed input, and an output for the answer.
type stranger struct {
	io.Reader
	io.Writer
}

// FuzzServe feeds arbitrary input to the server side, which untrusted clients reach.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"name":"w1"}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, said []byte) {
		asked := 0
		_ = Serve(stranger{bytes.NewReader(said), io.Discard}, func(Request) Answer { asked++; return Answer{} })
		if asked > 1 {
			t.Errorf("one request was judged %d times", asked)
		}
	})
}

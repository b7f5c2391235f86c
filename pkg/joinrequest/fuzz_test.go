package joinrequest

import (
	"bytes"
	"io"
	"testing"
)

// stranger says what he likes, and hears the answer.
type stranger struct {
	io.Reader
	io.Writer
}

// FuzzServe feeds the side that strangers reach.
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

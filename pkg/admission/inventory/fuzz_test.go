package inventory

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"testing"
)

// stranger is an untrusted client: a fixed input, and an output for the answer.
type stranger struct {
	io.Reader
	io.Writer
}

// FuzzServe feeds arbitrary input to the server side, which untrusted clients reach.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"key":"AA==","inventory":"e30=","signature":"AA=="}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, said []byte) {
		judged := 0
		_ = Serve(stranger{bytes.NewReader(said), io.Discard}, func(r Request) Answer {
			judged++
			if _, _, err := r.Verify(make([]byte, 32)); err == nil {
				t.Error("random input has a valid signature")
			}
			return Answer{}
		})
		if judged > 1 {
			t.Errorf("one request was judged %d times", judged)
		}
	})
}

// FuzzParseHost checks that an accepted inventory is within its bounds, and that its JSON form is
// the same inventory.
func FuzzParseHost(f *testing.F) {
	seed, err := json.Marshal(example())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"nics":[{"mac":"00-11-22-33-44-55","addresses":["::ffff:10.0.0.1"],"neighbors":[{}]}],"disks":[{}]}`))
	f.Add([]byte(`{"serial":"\ud800\u001b","cpus":65536}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := ParseHost(text)
		if err != nil {
			return
		}
		if !reflect.DeepEqual(h, h.Bounded()) || h.check() != nil {
			t.Errorf("%q: beyond its bounds: %+v", text, h)
		}
		again, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > maxHost {
			// JSON escapes made it larger than maxHost. A machine does not send this form: NewRequest
			// omits disks and NICs then.
			return
		}
		if second, err := ParseHost(again); err != nil || !reflect.DeepEqual(second, h) {
			t.Errorf("%q: %v\n%+v, want\n%+v", text, err, second, h)
		}
	})
}

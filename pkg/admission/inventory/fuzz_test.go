package inventory

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
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
	f.Add([]byte(`{"key":"AA==","inventory":"e30=","signature":"AA=="}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, input []byte) {
		requests := 0
		_ = Serve(stranger{bytes.NewReader(input), io.Discard}, func(r Request) Answer {
			requests++
			if _, _, err := r.Verify(make([]byte, 32)); err == nil {
				t.Error("random input has a valid signature")
			}
			return Answer{}
		})
		if requests > 1 {
			t.Errorf("Serve handles %d requests of one connection", requests)
		}
	})
}

// FuzzParseHost checks that an inventory that ParseHost accepts is within its bounds. If it is
// encoded as JSON, ParseHost must decode it to the same inventory.
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
			t.Errorf("%q: the inventory is beyond its bounds: %+v", text, h)
		}
		again, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > maxHost {
			// Escapes of JSON made the text larger than maxHost. A machine does not send this text,
			// because NewRequest then omits disks and NICs.
			return
		}
		if second, err := ParseHost(again); err != nil || !reflect.DeepEqual(second, h) {
			t.Errorf("%q: %v\n%+v, want\n%+v", text, err, second, h)
		}
	})
}

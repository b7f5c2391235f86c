package notify

import (
	"strings"
	"testing"
)

// FuzzRead passes arbitrary text to Read. In machined, the text comes from services, and some of
// them parse untrusted input.
func FuzzRead(f *testing.F) {
	f.Add(`{"component":"etcd","ready":true}` + "\n" + "nonsense\n" + strings.Repeat("x", MaxLine+1) + "\n{}\n")
	f.Fuzz(func(t *testing.T, text string) {
		err := Read(strings.NewReader(text), func(Message) {}, func(line string, err error) {
			if len(line) > MaxLine || err == nil {
				t.Errorf("Read reports a bad line of %d bytes with the error %v", len(line), err)
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
}

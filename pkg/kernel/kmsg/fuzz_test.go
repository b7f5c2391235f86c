package kmsg

import "testing"

// FuzzParse parses arbitrary records, because user programs also write to the kernel log.
func FuzzParse(f *testing.F) {
	f.Add("6,339,5140900,-;text\n SUBSYSTEM=pci")
	f.Add("30,1,1,-;a\\x0ab")
	f.Fuzz(func(t *testing.T, data string) {
		if r, err := Parse(data); err == nil && (r.Priority < 0 || r.Priority > 7 || r.Facility < 0 || len(r.Text) > len(data)) {
			t.Errorf("%q: %+v", data, r)
		}
	})
}

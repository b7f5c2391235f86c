package machineprovider

import "testing"

// TestSameUUID checks that SameUUID ignores differences in case and byte order. An empty UUID is
// unknown, so it can be the same as any other UUID.
func TestSameUUID(t *testing.T) {
	const uuid, other = "6f1f6c2e-0032-4000-8000-00000000000c", "6f1f6c2e-0032-4000-8000-00000000000d"
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{uuid, uuid, true}, {uuid, "6F1F6C2E-0032-4000-8000-00000000000C", true}, {uuid, "2e6c1f6f-3200-0040-8000-00000000000c", true},
		{uuid, "", true}, {"", uuid, true}, {uuid, other, false}, {"u-1", "u-1", true}, {"u-1", "u-2", false},
	} {
		if SameUUID(c.a, c.b) != c.same || SameUUID(c.b, c.a) != c.same {
			t.Errorf("%q and %q: want %t", c.a, c.b, c.same)
		}
	}
}

package diskmatch

import (
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestMismatches checks which fields of a selector a disk does not match. IdentityMismatches
// compares only the fields that cannot change between boots, such as the serial number.
func TestMismatches(t *testing.T) {
	d := Disk{Path: "/dev/sdb", Size: 100 << 30, Model: "WD Red", Serial: "A1", WWID: "naa.5", Bus: "/pci0000:00/0000:00:1f.2", Transport: "sata"}
	for name, c := range map[string]struct {
		s              config.DiskSelector
		matches        map[string]bool
		all, permanent string
	}{
		"an empty selector":          {},
		"a selector with all fields": {s: config.DiskSelector{Size: config.SizeRange{Min: 1 << 30, Max: 1 << 40}, Model: "WD*", Serial: "A?", WWID: "naa.*", Bus: "sata", Path: "/dev/sd*"}},
		"too small":                  {s: config.DiskSelector{Size: config.SizeRange{Min: 1 << 40}}, all: "size: it is not >= 1TiB"},
		"too large":                  {s: config.DiskSelector{Size: config.SizeRange{Max: 1 << 30}}, all: "size: it is not <= 1GiB"},
		"serial":                     {s: config.DiskSelector{Serial: "B*"}, all: `serial: "A1" does not match "B*"`, permanent: `serial: "A1" does not match "B*"`},
		"path":                       {s: config.DiskSelector{Path: "/dev/sda"}, all: `path: "/dev/sdb" does not match "/dev/sda"`},
		"bus":                        {s: config.DiskSelector{Bus: "nvme"}, all: `bus: neither "sata" nor "/pci0000:00/0000:00:1f.2" matches "nvme"`},
		"expression":                 {matches: map[string]bool{"/dev/sda": true}, all: "match: the expression is false"},
	} {
		if got := strings.Join(Mismatches(c.s, d, c.matches), "; "); got != c.all {
			t.Errorf("%s: %q, want %q", name, got, c.all)
		}
		if got := strings.Join(IdentityMismatches(c.s, d), "; "); got != c.permanent {
			t.Errorf("%s: IdentityMismatches = %q, want %q", name, got, c.permanent)
		}
	}
}

package vpd

import "testing"

func TestSerial(t *testing.T) {
	for page, want := range map[string]string{
		"\x00\x80\x00\x14     S3Z8NB0K123456 A": "S3Z8NB0K123456",
		"\x00\x80\x00\x04AB12":                  "AB12",
		"\x00\x80\x00\xffAB12":                  "AB12",
		"\x00\x83\x00\x04AB12":                  "",
		"\x00\x80":                              "",
		"":                                      "",
	} {
		if got := Serial([]byte(page)); got != want {
			t.Errorf("%q: %q, want %q", page, got, want)
		}
	}
}

// TestSamePhysicalDisk checks that a disk without an identifier, and a disk on USB, are never a
// second path to another disk.
func TestSamePhysicalDisk(t *testing.T) {
	sata := Identity{"naa.1", "sata"}
	for _, c := range []struct {
		name string
		b    Identity
		want bool
	}{
		{"the same identifier", Identity{"naa.1", "sas"}, true},
		{"the same identifier, on USB", Identity{"naa.1", TransportUSB}, false},
		{"another identifier", Identity{"naa.2", "sata"}, false},
		{"no identifier", Identity{"", "sata"}, false},
	} {
		if SamePhysicalDisk(sata, c.b) != c.want || SamePhysicalDisk(c.b, sata) != c.want {
			t.Errorf("%s: want %t", c.name, c.want)
		}
	}
	if SamePhysicalDisk(Identity{}, Identity{}) {
		t.Error("two disks without an identifier are the same disk")
	}
}

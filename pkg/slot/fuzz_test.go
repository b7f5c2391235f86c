package slot

import "testing"

// FuzzEntry parses arbitrary file names, because another system can write any file to the ESP. A
// name that ParseEntry accepts has a version, and the name of the parsed entry gives the same
// entry.
func FuzzEntry(f *testing.F) {
	for _, name := range []string{"orlop-1.2.0.efi", "orlop-1.2.0+3-0.efi", "orlop-1.2.0~rc1+0-3.efi", "other.efi", "orlop-1+99999999999999999999.efi"} {
		f.Add(name, "1.0.0")
	}
	f.Fuzz(func(t *testing.T, name, other string) {
		e, ours := ParseEntry(name)
		if !ours {
			return
		}
		if again, ours := ParseEntry(e.Name()); e.Version == "" || !ours || again != e {
			t.Errorf("%q is parsed as %+v, and the name of this entry, %q, as %+v", name, e, e.Name(), again)
		}
		_ = Compare(e.Version, other)
	})
}

package esp

import (
	"errors"
	"testing"

	"github.com/orlop-os/orlop/pkg/slot"
)

// FuzzCounted passes arbitrary content of the boot loader's variable to counted.
func FuzzCounted(f *testing.F) {
	f.Add([]byte("\x06\x00\x00\x00\\\x00o\x00r\x00l\x00o\x00p\x00-\x001\x00.\x00e\x00f\x00i\x00\x00\x00"))
	f.Add([]byte{6, 0, 0})
	f.Fuzz(func(t *testing.T, variable []byte) {
		if e, known := counted(variable); known && e.Version == "" {
			t.Errorf("%q: %+v", variable, e)
		}
	})
}

// ram is a file system in memory. It rejects access behind its end.
type ram []byte

func (r ram) ReadAt(p []byte, at int64) (int, error) {
	if at < 0 || at > int64(len(r)) || copy(p, r[at:]) < len(p) {
		return 0, errors.New("behind the end")
	}
	return len(p), nil
}

func (r ram) WriteAt(p []byte, at int64) (int, error) {
	if at < 0 || at+int64(len(p)) > int64(len(r)) {
		return 0, errors.New("behind the end")
	}
	return copy(r[at:], p), nil
}

// FuzzDirectory passes arbitrary file systems to the functions that work on the unmounted ESP.
func FuzzDirectory(f *testing.F) {
	boot := make([]byte, 8*sectorSize)
	copy(boot[11:], []byte{0, 2, 1, 1, 0, 1})
	boot[36], boot[44], boot[510], boot[511] = 1, 2, 0x55, 0xaa
	copy(boot[sectorSize+8:], []byte{0xff, 0xff, 0xff, 0x0f, 0xff, 0xff, 0xff, 0x0f, 0xff, 0xff, 0xff, 0x0f})
	copy(boot[2*sectorSize:], "EFI        \x10")
	boot[2*sectorSize+26] = 3
	copy(boot[3*sectorSize:], "LINUX      \x10")
	boot[3*sectorSize+26] = 4
	f.Add(boot)
	f.Fuzz(func(t *testing.T, image []byte) {
		fs := ram(image)
		if d, err := openDirectory(fs, slot.EntriesDir); err == nil {
			if len(d.content) > max(maxDirectory, int(d.cluster)) {
				t.Errorf("a directory of %d bytes was read", len(d.content))
			}
			for _, name := range d.files() {
				if len(name.text) > 4*(maxName+13) {
					t.Errorf("a name of %d bytes", len(name.text))
				}
			}
		}
		_ = removeDuplicates(fs, slot.EntriesDir)
		_ = trim(fs, slot.EntriesDir)
	})
}

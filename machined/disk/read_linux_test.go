package disk

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestExt4Size: a file system of 16 TiB and more is as large as it is.
func TestExt4Size(t *testing.T) {
	const tib = 1 << 40
	for _, c := range []struct {
		blocks   uint64
		features uint32
		want     uint64
	}{{1 << 18, 0x2c0, 1 << 30}, {20 * tib / 4096, 0x2c0, 20 * tib}, {1 << 18, 0x240, 77}} {
		image := make([]byte, 4096)
		put := func(offset int, value uint32) { binary.LittleEndian.PutUint32(image[1024+offset:], value) }
		put(0x4, uint32(c.blocks))
		put(0x150, uint32(c.blocks>>32))
		put(0x18, 2) // 4 KiB
		put(0x60, c.features)
		if got := ext4Size(bytes.NewReader(image), 77); got != c.want {
			t.Errorf("%d blocks, features %#x: %d, want %d", c.blocks, c.features, got, c.want)
		}
	}
	if got := ext4Size(bytes.NewReader(nil), 77); got != 77 {
		t.Errorf("of nothing: %d", got)
	}
}

func TestUnitSerial(t *testing.T) {
	for page, want := range map[string]string{
		"\x00\x80\x00\x14     S3Z8NB0K123456 A": "S3Z8NB0K123456",
		"\x00\x80\x00\x04AB12":                  "AB12",
		"\x00\x80\x00\xffAB12":                  "AB12",
		"\x00\x83\x00\x04AB12":                  "",
		"\x00\x80":                              "",
		"":                                      "",
	} {
		if got := unitSerial([]byte(page)); got != want {
			t.Errorf("%q: %q, want %q", page, got, want)
		}
	}
}

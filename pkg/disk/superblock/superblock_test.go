package superblock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// sparse is a disk that contains zeros, except at the offsets in its map.
type sparse struct {
	size   uint64
	pieces map[uint64][]byte
}

func (s sparse) ReadAt(p []byte, at int64) (int, error) {
	clear(p)
	for start, piece := range s.pieces {
		for i, b := range piece {
			if place := int64(start) + int64(i) - at; place >= 0 && place < int64(len(p)) {
				p[place] = b
			}
		}
	}
	if left := int64(s.size) - at; left < int64(len(p)) {
		return int(max(left, 0)), errors.New("read beyond the end")
	}
	return len(p), nil
}

const gib = 1 << 30

// TestEveryEndCounts: Examine reports a disk as blank only if both of its ends contain only zeros
// and the disk has no known signature. A single signature, or a single byte in an end, makes a disk
// not blank.
func TestEveryEndCounts(t *testing.T) {
	const size = 10*gib + 7*sector // not a multiple of a power of two
	examine := func(at uint64, magic string) Content {
		t.Helper()
		c, err := Examine(sparse{size, map[uint64][]byte{at: []byte(magic)}}, size)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := examine(0, ""); c.Kind != "" {
		t.Errorf("a blank disk is identified as %+v", c)
	}
	for _, m := range headSignatures {
		if c := examine(uint64(m.at), m.magic); c.Kind == "" {
			t.Errorf("a disk with %s at offset %d is reported as blank", m.name, m.at)
		}
	}
	for _, m := range tailSignatures {
		if c := examine(m.place(size), m.magic); c.Kind != m.name {
			t.Errorf("%s at %d: %q", m.name, m.place(size), c.Kind)
		}
	}
	for name, at := range map[string]uint64{
		"the first byte": 0, "the last byte of the first 8 MiB": EndSize - 1, "the first byte of the last 8 MiB": size - EndSize, "the last byte": size - 1,
		"an offset without a known signature": 3 << 20, "an offset in the last 8 MiB": size - 5<<20,
	} {
		if c := examine(at, "\x01"); c.Kind != UnknownData {
			t.Errorf("a disk with a single byte that is not zero, %s: %q", name, c.Kind)
		}
	}
}

// TestRAIDMembers: the metadata of Linux RAID is detected at each offset of md_p.h.
func TestRAIDMembers(t *testing.T) {
	for _, c := range []struct {
		name     string
		size, at uint64
		magic    string
		want     string
	}{
		{"metadata 0.90", 1<<30 + 100<<10, 1<<30 + 64<<10 - 64<<10, mdMagic, "Linux RAID member"},
		{"metadata 1.0", 1 << 30, 1<<30 - 8<<10, mdMagic, "Linux RAID member"},
		{"metadata 1.0, odd size", 1<<30 + 3*512, 1<<30 - 8<<10, mdMagic, "Linux RAID member"},
		{"Intel metadata", 1 << 30, 1<<30 - 1024, "Intel Raid ISM Cfg Sig. 1.3.00", "Intel RAID member"},
		{"DDF", 1 << 30, 1<<30 - 512, "\xde\x11\xde\x11", "DDF RAID member"},
	} {
		got, err := Examine(sparse{c.size, map[uint64][]byte{c.at: []byte(c.magic)}}, c.size)
		if err != nil || got.Kind != c.want {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
		// The beginning may contain a file system of the array.
		got, err = Examine(sparse{c.size, map[uint64][]byte{c.at: []byte(c.magic), extOffset: extSuper(0, 0)}}, c.size)
		if err != nil || got.Kind == "" {
			t.Errorf("%s with an ext4 at its beginning: %+v, %v", c.name, got, err)
		}
		if done, err := Unfinished(sparse{c.size, map[uint64][]byte{c.at: []byte(c.magic)}}, c.size); err != nil || done {
			t.Errorf("%s is identified as the remains of an interrupted mke2fs: %v", c.name, err)
		}
	}
}

// TestUnfinished: Unfinished returns true for the remains of an interrupted mke2fs, but not for
// those of other programs.
func TestUnfinished(t *testing.T) {
	const size = 256 << 20
	for _, c := range []struct {
		name string
		at   uint64
		want bool
	}{
		{"only zeros", size, true},
		{"group descriptors", 8192, true},
		{"a backup of group descriptors", 128 << 20, true},
		{"the first block", 100, false},
		{"the last byte", size - 1, false},
		{"the place of RAID metadata 0.90", size - 128<<10, false},
	} {
		pieces := map[uint64][]byte{}
		if c.at < size {
			pieces[c.at] = []byte{1}
		}
		if got, err := Unfinished(sparse{size, pieces}, size); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

// extSuper returns the superblock of an ext4 file system of 1 GiB with label DATA.
func extSuper(state uint16, errorsSeen uint32) []byte {
	b := make([]byte, extOffset)
	binary.LittleEndian.PutUint32(b[extBlocks:], 1<<18)
	binary.LittleEndian.PutUint32(b[extShift:], 2)
	binary.LittleEndian.PutUint16(b[extMagic:], 0xef53)
	binary.LittleEndian.PutUint16(b[extState:], state)
	binary.LittleEndian.PutUint32(b[extIncompat:], 0x2c0)
	copy(b[extLabel:], "DATA")
	binary.LittleEndian.PutUint32(b[extErrors:], errorsSeen)
	binary.LittleEndian.PutUint32(b[0x198:], 1700000000)
	binary.LittleEndian.PutUint32(b[0x19c:], 12)
	copy(b[0x1a8:], "ext4_lookup")
	binary.LittleEndian.PutUint32(b[0x1c8:], 1855)
	binary.LittleEndian.PutUint32(b[0x1cc:], 1700000060)
	binary.LittleEndian.PutUint32(b[0x1d4:], 77)
	binary.LittleEndian.PutUint64(b[0x1d8:], 5000)
	copy(b[0x1e0:], "ext4_find_extent")
	return b
}

// TestExt: ReadExt returns the kind, the size (even beyond 16 TiB), and the errors that the kernel
// has recorded.
func TestExt(t *testing.T) {
	const tib = 1 << 40
	for _, c := range []struct {
		blocks           uint64
		incompat, compat uint32
		kind             string
		size             uint64
	}{
		{1 << 18, 0x2c0, 4, "ext4", 1 << 30}, {20 * tib / 4096, 0x2c0, 4, "ext4", 20 * tib}, {1 << 18, 0x240, 4, "ext4", 1 << 30},
		{1 << 18, 0x2, 4, "ext3", 1 << 30}, {1 << 18, 0x2, 0, "ext2", 1 << 30},
	} {
		b := append(make([]byte, 1024), extSuper(1, 0)...)
		put := func(offset int, value uint32) { binary.LittleEndian.PutUint32(b[extOffset+offset:], value) }
		put(extBlocks, uint32(c.blocks))
		put(extHigh, uint32(c.blocks>>32))
		put(extIncompat, c.incompat)
		put(extCompat, c.compat)
		e, found, err := ReadExt(bytes.NewReader(b))
		if err != nil || !found || e.Kind != c.kind || e.Size != c.size || e.Label != "DATA" || e.Faults.Any() {
			t.Errorf("%+v: %+v, %v, %v", c, e, found, err)
		}
	}
	if _, found, err := ReadExt(bytes.NewReader(nil)); found || err != nil {
		t.Errorf("an empty area: %v, %v", found, err)
	}
	b := append(make([]byte, 1024), extSuper(1|extErrorFS, 3)...)
	e, _, err := ReadExt(bytes.NewReader(b))
	want := "3 errors, the first at 2023-11-14 22:13:20 UTC in ext4_lookup:1855 (inode 12), the last at 2023-11-14 22:14:20 UTC in ext4_find_extent:77 (block 5000)"
	if err != nil || !e.Faults.Any() || e.Faults.String() != want || !e.Faults.First.Time.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("%s\nwant %s, %v", e.Faults, want, err)
	}
	b = append(make([]byte, 1024), extSuper(extErrorFS, 0)...)
	if e, _, _ := ReadExt(bytes.NewReader(b)); !e.Faults.Any() || e.Faults.String() != "marked as having errors, of which none is recorded" {
		t.Errorf("%s", e.Faults)
	}
}

// run runs a program from the packages of the build (imager/host-packages.txt).
func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// opened opens a file as a disk, and returns its size.
func opened(t testing.TB, name string) (*os.File, uint64) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return f, uint64(info.Size())
}

const document = "kind: Machine\n"

// fatImage returns the path of a FAT image with the file machine.yaml and a boot loader.
func fatImage(t testing.TB, label string, mib int64, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	image, file := filepath.Join(dir, "fat"), filepath.Join(dir, "machine.yaml")
	if err := errors.Join(os.WriteFile(file, []byte(document), 0o600), os.WriteFile(image, nil, 0o600), os.Truncate(image, mib<<20)); err != nil {
		t.Fatal(err)
	}
	if label != "" {
		args = append(args, "-n", label)
	}
	run(t, "mkfs.fat", append(args, image)...)
	run(t, "mmd", "-i", image, "::/EFI", "::/EFI/BOOT")
	run(t, "mcopy", "-i", image, file, "::/machine.yaml")
	run(t, "mcopy", "-i", image, file, "::/EFI/BOOT/BOOTX64.EFI")
	return image
}

// TestFAT reads file systems of mkfs.fat and mtools, with each width of the table.
func TestFAT(t *testing.T) {
	for _, c := range []struct {
		label string
		mib   int64
		args  []string
	}{
		{"ORLOPCFG", 2, []string{"-F12"}}, {"cidata", 20, []string{"-F16"}}, {"CIDATA", 64, []string{"-F32", "-s1"}}, {"", 64, []string{"-F32", "-s1"}},
	} {
		r, size := opened(t, fatImage(t, c.label, c.mib, c.args...))
		got, err := Examine(r, size)
		if err != nil || got.Kind != "vfat" || !strings.EqualFold(got.Label, c.label) {
			t.Errorf("%v: %+v, %v", c, got, err)
		}
		text, err := FATFile(r, size, "machine.yaml", 1000)
		if err != nil || string(text) != document {
			t.Errorf("%v: %q, %v", c, text, err)
		}
		if there, err := FATHas(r, size, "EFI/BOOT/BOOTX64.EFI"); err != nil || !there {
			t.Errorf("%v: the loader: %v, %v", c, there, err)
		}
		if there, err := FATHas(r, size, "EFI/BOOT/OTHER.EFI"); err != nil || there {
			t.Errorf("%v: another loader: %v, %v", c, there, err)
		}
		if _, err := FATFile(r, size, "user-data", 1000); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: error for a missing file: %v", c, err)
		}
		if _, err := FATFile(r, size, "machine.yaml", 5); err == nil || !strings.Contains(err.Error(), "at most 5") {
			t.Errorf("%v: error for a file that is too large: %v", c, err)
		}
		if _, err := FATFile(r, size, "EFI", 1000); err == nil {
			t.Errorf("%v: FATFile reads a directory", c)
		}
	}
}

// TestFATChains: the reader stops at a cluster chain that is cyclic or leaves the table.
func TestFATChains(t *testing.T) {
	image := fatImage(t, "ORLOPCFG", 64, "-F32", "-s1")
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	boot, err := openFAT(f, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, next := range []uint32{boot.root, 0x0ffffff0, 0} {
		entry := binary.LittleEndian.AppendUint32(nil, next)
		if _, err := f.WriteAt(entry, int64(boot.table+4*uint64(boot.root))); err != nil {
			t.Fatal(err)
		}
		if _, err := FATFile(f, 64<<20, "user-data", 1000); err == nil {
			t.Errorf("a root with the invalid next cluster %#x in its chain was read without an error", next)
		}
	}
}

// TestISO reads volumes that xorriso has written, with ISO 9660 level 4, Joliet, Rock Ridge and
// combinations of them.
func TestISO(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"user-data", "meta-data"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, label string
		args        []string
	}{
		{"level 4", "cidata", []string{"-iso-level", "4"}},
		{"level 4, Joliet and Rock Ridge", "cidata", []string{"-iso-level", "4", "-J", "-R"}},
		{"Joliet and Rock Ridge", "cidata", []string{"-J", "-r"}},
		{"Joliet", "CIDATA", []string{"-J"}},
		{"Rock Ridge", "cidata", []string{"-R"}},
	} {
		image := filepath.Join(t.TempDir(), "iso")
		run(t, "xorriso", append(append([]string{"-as", "mkisofs", "-o", image, "-V", c.label}, c.args...), dir)...)
		r, size := opened(t, image)
		got, err := Examine(r, size)
		if err != nil || got.Kind != "iso9660" || got.Label != c.label {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
		text, err := ISOFile(r, size, "user-data", 1000)
		if err != nil || string(text) != document {
			t.Errorf("%s: %q, %v", c.name, text, err)
		}
		if _, err := ISOFile(r, size, "machine.yaml", 1000); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: error for a missing file: %v", c.name, err)
		}
		if _, err := ISOFile(r, size, "user-data", 5); err == nil || !strings.Contains(err.Error(), "at most 5") {
			t.Errorf("%s: error for a file that is too large: %v", c.name, err)
		}
	}
}

// descriptor returns a volume descriptor with a label and an empty root.
func descriptor(kind, version byte, escape string, label []byte) []byte {
	d := make([]byte, isoSector)
	d[0], d[6] = kind, version
	copy(d[1:], "CD001")
	copy(d[40:72], bytes.Repeat([]byte(" "), 32))
	copy(d[40:72], label)
	copy(d[88:], escape)
	binary.LittleEndian.PutUint16(d[128:], isoSector)
	root := d[156:190]
	root[0], root[25], root[32] = 34, 2, 1
	binary.LittleEndian.PutUint32(root[2:], 20)
	return d
}

// TestISOLabels: the label comes from the descriptor with the highest priority, and is decoded by
// the encoding of this descriptor.
func TestISOLabels(t *testing.T) {
	wide := func(s string) []byte {
		var out []byte
		for _, r := range s {
			out = append(out, 0, byte(r))
		}
		return append(out, bytes.Repeat([]byte{0, ' '}, 16-len(s))...)
	}
	primary := func(label string) []byte { return descriptor(1, 1, "", []byte(label)) }
	enhanced := func(label string) []byte { return descriptor(2, 2, "", []byte(label)) }
	joliet := func(label string) []byte { return descriptor(2, 1, "%/E", wide(label)) }
	boot := append([]byte("\x00CD001\x01EL TORITO"), make([]byte, isoSector-16)...)
	for _, c := range []struct {
		name        string
		descriptors [][]byte
		want        string
	}{
		{"primary alone", [][]byte{primary("cidata")}, "cidata"},
		{"primary, padded with zeros", [][]byte{primary("cidata\x00\x00\x00")}, "cidata"},
		{"primary and enhanced", [][]byte{primary("cidata"), enhanced("cidata")}, "cidata"},
		{"primary and enhanced with another label", [][]byte{primary("cidata"), enhanced("other")}, "cidata"},
		{"primary and Joliet", [][]byte{primary("CIDATA"), joliet("cidata")}, "CIDATA"},
		{"primary without a label, and Joliet", [][]byte{primary(""), joliet("cidata")}, "cidata"},
		{"Joliet alone", [][]byte{joliet("ORLOPCFG")}, "ORLOPCFG"},
		{"enhanced alone", [][]byte{enhanced("ORLOPCFG")}, "ORLOPCFG"},
		{"primary after a boot record", [][]byte{boot, primary("cidata")}, "cidata"},
	} {
		image := make([]byte, isoFirst*isoSector)
		for _, d := range append(c.descriptors, append([]byte("\xffCD001\x01"), make([]byte, isoSector-7)...)) {
			image = append(image, d...)
		}
		got, err := Examine(bytes.NewReader(image), uint64(len(image)))
		if err != nil || got.Kind != "iso9660" || got.Label != c.want {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

// FuzzContent passes arbitrary data to every decoder: none may panic, loop, or read a file beyond
// its limit.
func FuzzContent(f *testing.F) {
	for _, name := range []string{fatImage(f, "ORLOPCFG", 1, "-F12")} {
		image, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(image[:64<<10])
	}
	iso := make([]byte, isoFirst*isoSector)
	f.Add(append(append(iso, descriptor(1, 1, "", []byte("cidata"))...), descriptor(2, 1, "%/E", []byte("\x00c\x00i"))...))
	f.Add(append(make([]byte, 1024), extSuper(3, 2)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		const most = 1000
		r, size := bytes.NewReader(data), uint64(len(data))
		_, _ = Examine(r, size)
		_, _ = Unfinished(r, size)
		if e, found, err := ReadExt(r); err == nil && found {
			_ = e.Faults.String()
		}
		for _, read := range []func() ([]byte, error){
			func() ([]byte, error) { return FATFile(r, size, "EFI/BOOT/BOOTX64.EFI", most) },
			func() ([]byte, error) { return FATFile(r, size, "machine.yaml", most) },
			func() ([]byte, error) { return ISOFile(r, size, "user-data", most) },
		} {
			if text, err := read(); err == nil && len(text) > most {
				t.Errorf("%d bytes were read; the limit is %d", len(text), most)
			}
		}
	})
}

// TestSwap checks that Examine identifies areas that mkswap(8) has written.
func TestSwap(t *testing.T) {
	const id = "00000000-0000-4000-8000-000000000007"
	for _, size := range []uint64{40 << 10, 256 << 20, 5<<30 + 4096 + 512} {
		file := filepath.Join(t.TempDir(), "area")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, int64(size)); err != nil {
			t.Fatal(err)
		}
		if output, err := exec.Command("/sbin/mkswap", "-q", "-U", id, "-L", "fast", file).CombinedOutput(); err != nil {
			t.Fatalf("mkswap: %v\n%s", err, output)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c, err := Examine(f, size)
		if want := (Content{Kind: "swap", Label: "fast", UUID: uuid.MustParse(id), Size: size / swapPage * swapPage}); err != nil || c != want {
			t.Errorf("%+v, %v; want %+v", c, err, want)
		}
	}
}

package boot

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func TestInitramfs(t *testing.T) {
	entries := []Entry{
		{Name: "init", Mode: 0o755, Content: []byte("ELF")},
		{Name: "dev", Mode: fs.ModeDir | 0o755},
		{Name: "dev/console", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o600, Major: 5, Minor: 1},
		{Name: "bin", Mode: fs.ModeSymlink | 0o777, Content: []byte("usr/bin")},
	}
	packed, err := Initramfs(entries)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(entries)
	again, err := Initramfs(entries)
	if err != nil || !bytes.Equal(packed, again) {
		t.Errorf("the order of the entries changes the archive (%v)", err)
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := dec.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Fields: magic, inode, mode, uid, gid, links, mtime, size, device (2), special device (2),
	// name length, checksum.
	want := "070701" + "00000001" + "0000A1FF" + "00000000" + "00000000" + "00000001" + "00000000" + "00000007" + "00000000" + "00000000" + "00000000" + "00000000" + "00000004" + "00000000" + "bin\x00\x00\x00" + "usr/bin\x00" +
		"070701" + "00000002" + "000041ED" + "00000000" + "00000000" + "00000002" + "00000000" + "00000000" + "00000000" + "00000000" + "00000000" + "00000000" + "00000004" + "00000000" + "dev\x00\x00\x00" +
		"070701" + "00000003" + "00002180" + "00000000" + "00000000" + "00000001" + "00000000" + "00000000" + "00000000" + "00000000" + "00000005" + "00000001" + "0000000C" + "00000000" + "dev/console\x00\x00\x00" +
		"070701" + "00000004" + "000081ED" + "00000000" + "00000000" + "00000001" + "00000000" + "00000003" + "00000000" + "00000000" + "00000000" + "00000000" + "00000005" + "00000000" + "init\x00\x00" + "ELF\x00" +
		"070701" + "00000000" + "00000000" + "00000000" + "00000000" + "00000001" + "00000000" + "00000000" + "00000000" + "00000000" + "00000000" + "00000000" + "0000000B" + "00000000" + "TRAILER!!!\x00\x00\x00\x00"
	if string(raw) != want {
		t.Errorf("archive is\n%q\nwant\n%q", raw, want)
	}
}

func TestInitramfsRefuses(t *testing.T) {
	if _, err := Initramfs([]Entry{{Name: "socket", Mode: fs.ModeSocket}}); err == nil || !strings.Contains(err.Error(), "socket") {
		t.Errorf("a socket: error %v", err)
	}
}

// stub returns a small PE file with a single section, and space for `room` section headers.
func stub(t *testing.T, room int) []byte {
	t.Helper()
	const peOffset = 0x40
	var b bytes.Buffer
	b.WriteString("MZ")
	b.Write(make([]byte, peOffset-2))
	binary.LittleEndian.PutUint32(b.Bytes()[peHeaderPointer:], peOffset)
	optional := pe.OptionalHeader64{
		Magic: 0x20b, SectionAlignment: 4096, FileAlignment: 512, SizeOfImage: 0x3000, CheckSum: 7, NumberOfRvaAndSizes: 16,
		SizeOfHeaders: uint32(peOffset + 4 + coffLen + 240 + room*sectionHeaderLen),
	}
	optional.AddressOfEntryPoint = 0x1010
	text := pe.SectionHeader32{VirtualSize: 0x1001, VirtualAddress: 0x1000, SizeOfRawData: 512, PointerToRawData: 1024}
	copy(text.Name[:], ".text")
	for _, part := range []any{
		[]byte("PE\x00\x00"), pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: 1, SizeOfOptionalHeader: 240}, optional, text,
	} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	b.Write(make([]byte, 1024-b.Len()))
	for _, input := range inputs {
		b.Write(input.name)
	}
	b.WriteString(strings.Repeat("x", 500)) // the size is not a multiple of the file alignment
	return b.Bytes()
}

func TestUKI(t *testing.T) {
	sections := []Section{{".osrel", []byte("ID=orlop\n")}, {".initrd", bytes.Repeat([]byte("i"), 5000)}, {".linux", []byte("bzImage")}}
	out, err := UKI(stub(t, 5), sections)
	if err != nil {
		t.Fatal(err)
	}
	f, err := pe.NewFile(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Sections) != 5 || f.Sections[0].Name != ".text" || f.Sections[1].Name != ".orlop" {
		t.Fatalf("%d sections, first %s and %s; want .text, .orlop and three more", len(f.Sections), f.Sections[0].Name, f.Sections[1].Name)
	}
	end := f.Sections[1].VirtualAddress + f.Sections[1].VirtualSize
	for i, s := range f.Sections[2:] {
		content, err := s.Data()
		if err != nil || s.Name != sections[i].Name || !bytes.Equal(content[:s.VirtualSize], sections[i].Content) {
			t.Errorf("the content of section %s differs from the input (%v)", s.Name, err)
		}
		if s.VirtualAddress%4096 != 0 || s.VirtualAddress < end || s.Offset%512 != 0 {
			t.Errorf("section %s: address %#x after %#x, offset %#x", s.Name, s.VirtualAddress, end, s.Offset)
		}
		end = s.VirtualAddress + s.VirtualSize
	}
	opt, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if first := f.Sections[1]; !ok || opt.AddressOfEntryPoint != first.VirtualAddress || first.Characteristics != 0x60000020 {
		t.Errorf("the entry point is %#x, want the guard at %#x, in a section that is executable and not writable (flags %#x)",
			opt.AddressOfEntryPoint, first.VirtualAddress, first.Characteristics)
	} else if content, err := first.Data(); err != nil || !bytes.Equal(content[:first.VirtualSize], guard(first.VirtualAddress, 0x1010)) {
		t.Errorf("the guard does not jump to the stub (%v)", err)
	}
	if !ok || opt.SizeOfImage < end || opt.SizeOfImage%4096 != 0 || opt.CheckSum != 0 {
		t.Errorf("the headers have the size %#x and the checksum %d; the sections end at %#x", opt.SizeOfImage, opt.CheckSum, end)
	}
}

func TestCloseInputs(t *testing.T) {
	before := stub(t, 3)
	out, err := UKI(before, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, input := range inputs {
		at := bytes.Index(before, input.name)
		closed := append(bytes.Repeat([]byte{0xff}, len(bytes.TrimRight(input.name, "\x00"))), 0)
		if !bytes.HasPrefix(out[at:], closed) || bytes.Contains(out, input.name) {
			t.Errorf("the stub still reads %s: % x", input.what, out[at:at+len(input.name)])
		}
	}
}

func TestUKIRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		stub     []byte
		sections []Section
		want     string
	}{
		"no PE":         {[]byte("ELF"), nil, "cannot read as PE"},
		"no room":       {stub(t, 3), []Section{{".a", nil}, {".b", nil}}, "no room for 3 more sections"},
		"name too long": {stub(t, 3), []Section{{".something", nil}}, ".something: name is longer"},
		"input missing": {bytes.Replace(stub(t, 3), []byte("io.systemd"), []byte("IO.systemd"), 1), nil, "the stub contains the name of an input 0 times, want 1: arguments from the firmware's SMBIOS table"},
		"input twice":   {append(stub(t, 3), utf16le(".addon.efi\x00")...), nil, "the stub contains the name of an input 2 times, want 1: arguments and initramfs archives from add-ons"},
	} {
		if _, err := UKI(c.stub, c.sections); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
	}
}

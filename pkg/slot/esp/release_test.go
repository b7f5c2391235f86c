package esp

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"strings"
	"testing"
)

// bootImage returns a PE file with a single section, which has a name and contains a text.
func bootImage(t *testing.T, name, text string) []byte {
	t.Helper()
	const headers = 512
	var b bytes.Buffer
	dos := make([]byte, 64)
	copy(dos, "MZ")
	binary.LittleEndian.PutUint32(dos[0x3c:], 64)
	b.Write(dos)
	section := pe.SectionHeader32{VirtualSize: uint32(len(text)), VirtualAddress: 4096, SizeOfRawData: 512, PointerToRawData: headers}
	copy(section.Name[:], name)
	for _, part := range []any{
		[]byte("PE\x00\x00"), pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: 1}, section,
	} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	b.Write(make([]byte, headers-b.Len()))
	b.WriteString(text + strings.Repeat("\x00", 512-len(text)))
	return b.Bytes()
}

func TestKubernetesVersion(t *testing.T) {
	for name, test := range map[string]struct {
		image   []byte
		want    string
		problem string
	}{
		"a version":                      {bootImage(t, ".osrel", "ID=orlop\nORLOP_KUBERNETES_VERSION=v1.37.2\nVARIANT_ID=qemu\n"), "v1.37.2", ""},
		"a version in the last line":     {bootImage(t, ".osrel", "ORLOP_KUBERNETES_VERSION=v1.37.2"), "v1.37.2", ""},
		"os-release without the version": {bootImage(t, ".osrel", "ID=orlop\n"), "", ""},
		"no os-release":                  {bootImage(t, ".linux", "ORLOP_KUBERNETES_VERSION=v1.37.2"), "", ""},
		"a truncated image":              {bootImage(t, ".osrel", "ORLOP_KUBERNETES_VERSION=v1.37.2")[:520], "", "cannot read its os-release"},
		"no boot image":                  {[]byte("ELF"), "", "boot image: cannot read"},
	} {
		got, err := KubernetesVersion(bytes.NewReader(test.image))
		if got != test.want || (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

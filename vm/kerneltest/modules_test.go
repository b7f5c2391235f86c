package kerneltest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// moduleFile returns the smallest ELF file with info as its section .modinfo.
func moduleFile(t *testing.T, info string) []byte {
	t.Helper()
	const names = "\x00.modinfo\x00.shstrtab\x00"
	const head, section = 64, 64
	header := elf.Header64{Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: head,
		Shoff: head, Shentsize: section, Shnum: 3, Shstrndx: 2}
	copy(header.Ident[:], "\x7fELF\x02\x01\x01")
	data := uint64(head + 3*section)
	var b bytes.Buffer
	for _, part := range []any{header, elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: data, Size: uint64(len(info))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: data + uint64(len(info)), Size: uint64(len(names))},
		[]byte(info), []byte(names)} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestModulesAreLoadedInOrder checks that closure returns each module after its dependencies, and
// omits built-in modules and a missing optional module.
func TestModulesAreLoadedInOrder(t *testing.T) {
	dir := t.TempDir()
	for path, content := range map[string]string{
		"vmlinuz":                          "",
		"modules/6.12/modules.builtin":     "kernel/fs/ext4.ko\n",
		"modules/6.12/net/virtio_net.ko":   string(moduleFile(t, "license=GPL\x00depends=net_failover,ext4\x00")),
		"modules/6.12/net/net-failover.ko": string(moduleFile(t, "depends=failover\x00")),
		"modules/6.12/net/failover.ko":     string(moduleFile(t, "depends=\x00softdep=pre: crc32c post: zstd\x00")),
		"modules/6.12/lib/crc32c.ko":       string(moduleFile(t, "depends=\x00")),
		"modules/6.12/net/dummy.ko":        string(moduleFile(t, "depends=\x00")),
		"modules/6.12/bad/alone.ko":        string(moduleFile(t, "depends=missing\x00")),
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k, err := openKernel(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{"virtio-net", "dummy numdummies=0", "ext4", "nothing?", "failover"}
	modules, err := k.closure(list)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range modules {
		got = append(got, strings.TrimSpace(m.name+" "+m.parameters))
	}
	if want := "crc32c, failover, net_failover, virtio_net, dummy numdummies=0"; strings.Join(got, ", ") != want {
		t.Errorf("closure returns the modules %v, want %s", got, want)
	}
	if list[1] != "dummy numdummies=0" {
		t.Error("closure changes the list of its caller")
	}
	for _, bad := range []string{"nothing", "alone"} {
		if _, err := k.closure([]string{bad}); err == nil || !strings.Contains(err.Error(), "neither a file nor part of the kernel") {
			t.Errorf("closure of the module %s returns %v", bad, err)
		}
	}
	if _, err := openKernel(t.TempDir()); err == nil || !strings.Contains(err.Error(), "make image") {
		t.Errorf("openKernel of an empty directory returns %v", err)
	}
}

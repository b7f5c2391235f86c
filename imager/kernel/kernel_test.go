package kernel

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// unpacked returns a kernel with these lines in modules.dep and modules.builtin.
func unpacked(t *testing.T, dep, builtin string) *Kernel {
	t.Helper()
	dir := t.TempDir()
	modules := filepath.Join(dir, "lib/modules/6.12.0-test")
	if err := os.MkdirAll(modules, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"modules.dep": dep, "modules.builtin": builtin} {
		if err := os.WriteFile(filepath.Join(modules, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const (
	testDep = `kernel/drivers/md/dm-mod.ko:
kernel/drivers/md/dm-bufio.ko: kernel/drivers/md/dm-mod.ko
kernel/drivers/md/dm-verity.ko: kernel/drivers/md/dm-bufio.ko kernel/drivers/md/dm-mod.ko
kernel/net/netfilter/nf_tables.ko: kernel/net/netfilter/nfnetlink.ko
kernel/net/netfilter/nfnetlink.ko:
kernel/net/netfilter/ipset/ip_set.ko: kernel/net/netfilter/nfnetlink.ko
`
	testBuiltin = "kernel/drivers/virtio/virtio_pci.ko\n"
)

func TestSelect(t *testing.T) {
	k := unpacked(t, testDep, testBuiltin)
	for _, c := range []struct {
		patterns string
		want     string
	}{
		{"dm_verity", "kernel/drivers/md/dm-bufio.ko kernel/drivers/md/dm-mod.ko kernel/drivers/md/dm-verity.ko"},
		{"dm-mod virtio_pci", "kernel/drivers/md/dm-mod.ko"},
		{"net/netfilter/ipset/", "kernel/net/netfilter/ipset/ip_set.ko kernel/net/netfilter/nfnetlink.ko"},
		{"net/netfilter/ dm-mod", "kernel/drivers/md/dm-mod.ko kernel/net/netfilter/ipset/ip_set.ko kernel/net/netfilter/nf_tables.ko kernel/net/netfilter/nfnetlink.ko"},
	} {
		got, err := k.Select(strings.Fields(c.patterns))
		if err != nil || !reflect.DeepEqual(got, strings.Fields(c.want)) {
			t.Errorf("Select(%s) = %v, %v; want %s", c.patterns, got, err, c.want)
		}
	}
	for _, unknown := range []string{"dm-verify", "net/netfiler/"} {
		if _, err := k.Select([]string{unknown}); err == nil || !strings.Contains(err.Error(), unknown) {
			t.Errorf("Select(%s): error %v, want an error with the pattern", unknown, err)
		}
	}
}

func TestNames(t *testing.T) {
	k := unpacked(t, testDep, testBuiltin)
	got := k.Names([]string{"virtio_pci", "dm-verity", "nf_tables"})
	if want := []string{"dm_verity", "nf_tables"}; !reflect.DeepEqual(got, want) {
		t.Errorf("Names = %v, want %v: without built-in modules, in the given order", got, want)
	}
}

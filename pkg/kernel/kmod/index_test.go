package kmod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// moduleDir returns a small module directory with the files of depmod.
func moduleDir(t *testing.T) *Index {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"modules.dep": `kernel/drivers/md/dm-verity.ko.xz: kernel/drivers/md/dm-bufio.ko.xz kernel/drivers/md/dm-mod.ko.xz kernel/lib/reed_solomon/reed_solomon.ko.xz
kernel/drivers/md/dm-bufio.ko.xz: kernel/drivers/md/dm-mod.ko.xz
kernel/drivers/md/dm-mod.ko.xz:
kernel/lib/reed_solomon/reed_solomon.ko.xz:
kernel/fs/erofs/erofs.ko: kernel/lib/libcrc32c.ko
kernel/lib/libcrc32c.ko:
kernel/drivers/block/virtio_blk.ko:
kernel/drivers/ata/ahci.ko:
kernel/soft/a.ko:
kernel/soft/b.ko:
kernel/arch/x86/crypto/crc32c-intel.ko:
`,
		"modules.alias": `# Aliases extracted from modules themselves.
alias fs-erofs erofs
alias crc32c crc32c_intel
alias virtio:d00000002v* virtio_blk
alias pci:v00008086d00002922sv*sd*bc*sc*i* ahci
alias pci:v*d*sv*sd*bc01sc06i01* ahci
alias pci:v00008086d0000[2-3]9[a-b]Fsv* b
`,
		"modules.softdep": "# comment\nsoftdep a pre: b crc32c post: erofs\nsoftdep b pre: a\nsoftdep libcrc32c post: a\n",
		"modules.builtin": "kernel/fs/ext4/ext4.ko\nkernel/drivers/virtio/virtio-pci.ko\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	x, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// brief prints the steps of a plan. "b (c) a<b+c" means: load b; load c, a soft dependency; load a
// after b and c.
func brief(steps []Step) string {
	var words []string
	for _, s := range steps {
		word := s.Name
		if s.Soft {
			word = "(" + word + ")"
		}
		if len(s.After) > 0 {
			word += "<" + strings.Join(s.After, "+")
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestPlan(t *testing.T) {
	x := moduleDir(t)
	for _, c := range []struct{ names, want string }{
		{"virtio_blk", "virtio_blk"},
		{"virtio-blk", "virtio_blk"},
		{"dm-verity", "reed_solomon dm_mod dm_bufio<dm_mod dm_verity<reed_solomon+dm_mod+dm_bufio"},
		{"dm_mod dm_verity", "dm_mod reed_solomon dm_bufio<dm_mod dm_verity<reed_solomon+dm_mod+dm_bufio"},
		{"erofs erofs", "libcrc32c erofs<libcrc32c"},
		{"fs-erofs", "libcrc32c erofs<libcrc32c"},
		{"ext4 virtio-pci", ""},
		// a and b are soft dependencies of each other. a also depends on crc32c, an alias of
		// crc32c_intel.
		{"a", "(b) (crc32c_intel) a<b+crc32c_intel"},
		{"b", "(crc32c_intel) (a)<crc32c_intel b<a"},
	} {
		steps, err := x.Plan(strings.Fields(c.names)...)
		if err != nil {
			t.Errorf("Plan(%s): %v", c.names, err)
		}
		if got := brief(steps); got != c.want {
			t.Errorf("Plan(%s) = %s, want %s", c.names, got, c.want)
		}
	}
	steps, err := x.Plan("nonesuch", "virtio_blk")
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "nonesuch") || brief(steps) != "virtio_blk" {
		t.Errorf("Plan with a missing module = %s, %v", brief(steps), err)
	}
}

// TestPlanHasNoCircles checks that no step of a plan waits for a later step. Otherwise Load would
// wait forever.
func TestPlanHasNoCircles(t *testing.T) {
	x := moduleDir(t)
	names := x.Names()
	for _, first := range names {
		for _, second := range names {
			steps, err := x.Plan(first, second)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for _, s := range steps {
				for _, need := range s.After {
					if !seen[need] {
						t.Errorf("Plan(%s, %s): %s waits for %s, which comes later", first, second, s.Name, need)
					}
				}
				seen[s.Name] = true
			}
		}
	}
}

func TestMatch(t *testing.T) {
	x := moduleDir(t)
	for _, c := range []struct {
		aliases []string
		want    string
	}{
		{[]string{"virtio:d00000002v00001AF4"}, "[virtio_blk]"},
		{[]string{"virtio:d00000001v00001AF4"}, "[]"},
		{[]string{"pci:v00008086d00002922sv00001AF4sd00001100bc01sc06i01", "virtio:d00000002v00001AF4"}, "[ahci virtio_blk]"},
		{[]string{"pci:v00001234d00001111sv0sd0bc01sc06i01"}, "[ahci]"},
		{[]string{"pci:v00008086d000039bFsv1"}, "[b]"},
		{[]string{"pci:v00008086d000049bFsv1"}, "[]"},
		{[]string{"fs-erofs"}, "[erofs]"},
		{nil, "[]"},
	} {
		if got := fmt.Sprint(x.Match(c.aliases...)); got != c.want {
			t.Errorf("Match(%v) = %s, want %s", c.aliases, got, c.want)
		}
	}
}

func TestReadNeedsOnlyModulesDep(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(dir); err == nil {
		t.Error("Read accepts a directory without modules.dep")
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), []byte("a.ko:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	x, err := Read(dir)
	if err != nil || !slices.Equal(x.Names(), []string{"a"}) {
		t.Errorf("Read = %v, %v", x, err)
	}
}

// TestWith combines the indexes of two directories. nfs is a module of the second directory and
// depends on libcrc32c, a module of both. The plan takes libcrc32c from the first directory.
func TestWith(t *testing.T) {
	base := moduleDir(t)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"modules.dep":   "kernel/fs/nfs/nfs.ko: kernel/lib/libcrc32c.ko\nkernel/lib/libcrc32c.ko:\n",
		"modules.alias": "alias fs-nfs nfs\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	more, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	both := base.With(more)
	steps, err := both.Plan("fs-nfs", "ahci")
	if err != nil || len(steps) < 3 {
		t.Fatal(steps, err)
	}
	files := map[string]string{}
	for _, s := range steps {
		files[s.Name] = s.File
	}
	if files["nfs"] != filepath.Join(dir, "kernel/fs/nfs/nfs.ko") || files["libcrc32c"] != filepath.Join(base.dir, "kernel/lib/libcrc32c.ko") || files["ahci"] == "" {
		t.Error(files)
	}
	if _, err := base.Plan("nfs"); !errors.Is(err, ErrNotFound) {
		t.Error("With has changed the first index:", err)
	}
}

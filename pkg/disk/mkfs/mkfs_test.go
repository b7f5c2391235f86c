package mkfs

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
)

func TestFAT32Cluster(t *testing.T) {
	for mib, want := range map[uint64]int{33: 1, 64: 1, 127: 1, 128: 2, 256: 4, 511: 4, 512: 8, 1024: 16, 8192: 64} {
		got := FAT32Cluster(mib << 20)
		if got != want {
			t.Errorf("%d MiB: a cluster has %d sectors, want %d", mib, got, want)
		}
		// A file system with fewer than 65525 clusters is FAT16. The test requires twice this
		// number, because the file allocation tables also take space, but far less than half of it.
		if clusters := mib << 20 / 512 / uint64(got); mib >= 64 && clusters < 2*65525 {
			t.Errorf("%d MiB: %d clusters are too near to FAT16", mib, clusters)
		}
	}
}

// TestExt4Features formats a file with the mke2fs.conf of two versions of e2fsprogs, and checks
// that the features of the file system do not depend on mke2fs.conf. mke2fs is from the packages of
// the build (imager/host-packages.txt).
func TestExt4Features(t *testing.T) {
	// Documentation/filesystems/ext4/super.rst: compatible, incompatible and read-only compatible
	// features
	const superblock, features = 1024, 0x5c
	want := [3]uint32{
		0x4 | 0x8 | 0x10 | 0x20,   // has_journal, ext_attr, resize_inode, dir_index
		0x2 | 0x40 | 0x80 | 0x200, // filetype, extent, 64bit, flex_bg
		// sparse_super, large_file, huge_file, dir_nlink, extra_isize, quota, metadata_csum,
		// project
		0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x100 | 0x400 | 0x2000,
	}
	id := uuid.New()
	for _, added := range []string{"", ",metadata_csum_seed,orphan_file"} {
		dir := t.TempDir()
		config, image := filepath.Join(dir, "mke2fs.conf"), filepath.Join(dir, "image")
		text := "[defaults]\n\tbase_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr\n[fs_types]\n" +
			"\text4 = {\n\t\tfeatures = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize" + added + "\n\t}\n\tsmall = {\n\t\tinode_ratio = 4096\n\t}\n"
		for file, content := range map[string]string{config: text, image: ""} {
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Truncate(image, 64<<20); err != nil {
			t.Fatal(err)
		}
		command := ext4Command(image, Ext4Options{Label: "TEST", UUID: id, ReservedPercent: 1, Quotas: ProjectQuotas})
		c := exec.Command(command[0], command[1:]...)
		c.Env = append(os.Environ(), "MKE2FS_CONFIG="+config)
		if msg, err := c.CombinedOutput(); err != nil || len(msg) > 0 {
			t.Fatalf("mke2fs: %v, %s", err, msg)
		}
		content, err := os.ReadFile(image)
		if err != nil {
			t.Fatal(err)
		}
		var got [3]uint32
		for i := range got {
			got[i] = binary.LittleEndian.Uint32(content[superblock+features+4*i:])
		}
		if string(content[superblock+0x68:superblock+0x78]) != string(id[:]) {
			t.Errorf("the UUID is %x, want %s", content[superblock+0x68:superblock+0x78], id)
		}
		if got != want {
			t.Errorf("mke2fs.conf with %q: features %#x, want %#x", added, got, want)
		}
	}
}

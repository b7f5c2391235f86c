package diskprobe

import (
	"os"
	"path/filepath"
	"testing"
)

// TestList checks how List reads disks, drives and partitions from sysfs.
func TestList(t *testing.T) {
	sys := t.TempDir()
	write := func(files map[string]string) {
		t.Helper()
		for name, text := range files {
			path := filepath.Join(sys, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	const stat = "10 0 80 1 5 0 40 1 0 1 1 0 0 0 0 0 0"
	write(map[string]string{
		"sda/size": "2097152", "sda/ro": "0", "sda/removable": "0", "sda/diskseq": "7", "sda/stat": stat, "sda/queue/logical_block_size": "4096",
		"sda/sda2/partition": "2", "sda/sda2/start": "4096", "sda/sda2/size": "100", "sda/sda10/partition": "10", "sda/sda10/size": "5", "sda/holders/x": "",
		"sr0/size": "2097151", "sr0/removable": "1", "sr0/device/type": "5", "sdb/size": "0", "sdb/removable": "1", "nbd0/size": "0", "nbd0/removable": "0",
		"loop0/size": "8", "dm-0/size": "8", "zram0/size": "8", "ram0/size": "8",
	})
	all, err := List(sys)
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	a, b, cd := all[0], all[1], all[2]
	if a.Path != "/dev/sda" || a.Size != 1<<30 || a.SectorSize != 4096 || a.ReadOnly || a.Removable || a.Optical || a.Written != "5 40 0 0" {
		t.Errorf("%+v", a)
	}
	if len(a.Partitions) != 2 || a.Partitions[0] != (Partition{2, "/dev/sda2"}) || a.Partitions[1] != (Partition{10, "/dev/sda10"}) {
		t.Errorf("%+v", a.Partitions)
	}
	if !b.Removable || b.Size != 0 || b.SectorSize != 512 || !cd.Optical || !cd.Removable {
		t.Errorf("%+v, %+v", b, cd)
	}
	for name, text := range map[string]string{"sda/diskseq": "8", "sda/size": "2097153", "sda/ro": "1", "sda/sda2/size": "101"} {
		write(map[string]string{name: text})
		if now, err := List(sys); err != nil || now[0].Identity == a.Identity {
			t.Errorf("after a change of %s, the disk has the same Identity (%v)", name, err)
		} else {
			a = now[0]
		}
	}
	write(map[string]string{"sda/stat": "10 0 80 1 6 0 48 1 0 1 1 0 0 0 0 0 0"})
	if now, err := List(sys); err != nil || now[0].Identity != a.Identity || now[0].Written == a.Written {
		t.Errorf("after a write: %+v, %v", now, err)
	}
}

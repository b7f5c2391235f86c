package disk

import "testing"

// TestPartitionOf: the disk that the system runs from is known by its partition, and no other is taken for it.
func TestPartitionOf(t *testing.T) {
	for _, c := range []struct {
		path, disk string
		is         bool
	}{
		{"/dev/vda2", "/dev/vda", true}, {"/dev/vdaa2", "/dev/vda", false}, {"/dev/vda", "/dev/vda", false}, {"/dev/nvme0n1p3", "/dev/nvme0n1", true},
		{"/dev/nvme0n12p3", "/dev/nvme0n1", false}, {"", "/dev/vda", false}, {"/dev/sda12", "/dev/sda", true},
	} {
		if got := partitionOf(c.path, c.disk); got != c.is {
			t.Errorf("%s of %s: %t", c.path, c.disk, got)
		}
	}
}

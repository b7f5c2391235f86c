package mkfs

import "testing"

func TestFAT32Cluster(t *testing.T) {
	for mib, want := range map[uint64]int{33: 1, 64: 1, 127: 1, 128: 2, 256: 4, 511: 4, 512: 8, 1024: 16, 8192: 64} {
		got := FAT32Cluster(mib << 20)
		if got != want {
			t.Errorf("%d MiB: %d sectors are a cluster, want %d", mib, got, want)
		}
		// The file allocation tables take far less than the remaining half.
		if clusters := mib << 20 / 512 / uint64(got); mib >= 64 && clusters < 2*65525 {
			t.Errorf("%d MiB: %d clusters are too near to FAT16", mib, clusters)
		}
	}
}

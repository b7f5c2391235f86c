package parttable

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// cutMemory is a disk that loses power after a number of writes; later writes fail.
type cutMemory struct {
	memory
	left int
}

var errPower = errors.New("no power")

func (m *cutMemory) WriteAt(p []byte, at int64) (int, error) {
	if m.left == 0 {
		return 0, errPower
	}
	m.left--
	return m.memory.WriteAt(p, at)
}

// identities returns the GUIDs of a disk and of its partitions.
func identities(t *testing.T, disk gpt.Device) []uuid.UUID {
	t.Helper()
	table, err := Read(disk)
	if err != nil {
		t.Fatal(err)
	}
	all := []uuid.UUID{DiskGUID(disk)}
	for _, p := range table.Partitions() {
		all = append(all, p.PartGUID)
	}
	return all
}

// flashed returns a disk with a partition table as in an image of the imager. guids are the GUIDs
// of the disk, the ESP, both roots and STATE. All except that of STATE are GUIDs of the image.
func flashed(t *testing.T) (disk []byte, guids []uuid.UUID) {
	t.Helper()
	m := &memory{data: make([]byte, size), bad: map[int64]bool{}}
	derived := func(name string) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)) }
	guids = []uuid.UUID{derived("disk"), derived("ESP"), derived("ROOT-A"), derived("ROOT-B"), uuid.New()}
	table, err := gpt.New(Ordered(m), gpt.WithDiskGUID(guids[0]))
	if err != nil {
		t.Fatal(err)
	}
	for i, label := range []string{layout.ESP, layout.RootA, layout.RootB, layout.State} {
		if _, _, err := table.AllocatePartition(1<<20, label, layout.TypeRoot, gpt.WithUniqueGUID(guids[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Write(); err != nil {
		t.Fatal(err)
	}
	return m.data, guids
}

// TestIdentify: identify gives new GUIDs to the disk and its ESP, and only once. The GUIDs of the
// roots and of STATE stay. A power cut at any write leaves the old table or the new table, and a
// second call of identify completes the change.
func TestIdentify(t *testing.T) {
	start, old := flashed(t)
	for cut := 0; ; cut++ {
		disk := &cutMemory{memory{data: bytes.Clone(start), bad: map[int64]bool{}}, cut}
		err := identify(disk, uuid.NewRandom)
		done := err == nil
		if !done && !errors.Is(err, errPower) {
			t.Fatal(err)
		}
		now := identities(t, disk)
		if len(now) != len(old) {
			t.Fatalf("cut after %d writes: %d GUIDs", cut, len(now))
		}
		if (now[0] != old[0]) != (now[1] != old[1]) {
			t.Errorf("cut after %d writes: half of the GUIDs are new: %v", cut, now)
		}
		disk.left = -1
		if err := identify(disk, uuid.NewRandom); err != nil {
			t.Fatalf("cut after %d writes, again: %v", cut, err)
		}
		now = identities(t, disk)
		for i, wantNew := range []bool{true, true, false, false, false} {
			if (now[i] != old[i]) != wantNew || wantNew && layout.IsImageGUID(now[i]) {
				t.Errorf("cut after %d writes, again: GUID %d was %s and is %s", cut, i, old[i], now[i])
			}
		}
		before := bytes.Clone(disk.data)
		if err := identify(disk, uuid.NewRandom); err != nil || !bytes.Equal(disk.data, before) {
			t.Errorf("cut after %d writes: identify changed a disk that already has new GUIDs (%v)", cut, err)
		}
		if done {
			if cut < 4 {
				t.Errorf("identify needs only %d writes, so the test has too few power cuts", cut)
			}
			return
		}
	}
}

// TestDiskGUID: DiskGUID returns the GUID of the disk even if only the backup table is valid, and
// zero if both tables are damaged.
func TestDiskGUID(t *testing.T) {
	data, guids := flashed(t)
	for what, c := range map[string]struct {
		damage []int
		want   uuid.UUID
	}{
		"no damage":                           {nil, guids[0]},
		"the primary header":                  {[]int{512 + 60}, guids[0]},
		"the primary entries":                 {[]int{1024 + 20}, guids[0]},
		"the signature of the primary header": {[]int{512}, guids[0]},
		"the length in the primary header":    {[]int{512 + 15}, guids[0]},
		"both headers":                        {[]int{512 + 60, size - 512 + 60}, uuid.Nil},
	} {
		disk := &memory{data: bytes.Clone(data), bad: map[int64]bool{}}
		for _, at := range c.damage {
			disk.data[at] ^= 0xff
		}
		if got := DiskGUID(disk); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

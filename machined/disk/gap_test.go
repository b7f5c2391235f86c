package disk

import (
	"strings"
	"testing"
)

// TestGap checks that a gap before a foreign partition leads to an error with the reason. A gap
// that is too small for a new partition, or larger than the space behind the last partition, is no
// error, because the partition library would not use this gap.
func TestGap(t *testing.T) {
	for _, c := range []struct {
		name string
		size uint64 // of the foreign partition, MiB
		gap  uint64 // before it, MiB
		want string
	}{
		{"no gap", 100, 0, ""},
		{"too small for STATE", 100, 200, ""},
		{"as large as STATE", 100, 256, "cannot make STATE: the partition table has a gap of 256 MiB before partition 4 \"linux\" (100 MiB); a new partition there would take its number"},
		{"larger than STATE", 100, 300, "cannot make STATE: the partition table has a gap of 300 MiB"},
	} {
		have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(but(foreign, func(p *partSpec) { p.size = c.size; p.content = Content{} }))}})
		have.Disks[0].Partitions[3].Start += c.gap * mib
		_, err := Plan(Config{}, have)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(state, but(foreign, func(p *partSpec) { p.size = 100; p.content = Content{} }))}})
	entries := []Entry{}
	for _, p := range have.Disks[0].Partitions {
		entries = append(entries, p.Entry)
	}
	entries[4].Start += 800 * mib
	if behind, gap := gapFor(have.Disks[0], entries, 500*mib, 900*mib); gap != 800*mib || behind.Number != 5 {
		t.Errorf("a gap for DATA: %v, %d", behind, gap)
	}
	if _, gap := gapFor(have.Disks[0], entries, 500*mib, 600*mib); gap != 0 {
		t.Errorf("a gap that is larger than the space at the end: %d", gap)
	}
}

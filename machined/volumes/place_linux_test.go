package volumes

import (
	"strings"
	"testing"

	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
)

// TestCheckPlace checks that checkPlace rejects a partition table in which the new partition
// overlaps another partition or changes the number of another partition.
func TestCheckPlace(t *testing.T) {
	at := func(first, last uint64) *gpt.Partition { return &gpt.Partition{FirstLBA: first, LastLBA: last} }
	a, b, made := at(2048, 4095), at(8192, 9999), at(4096, 8191)
	for name, c := range map[string]struct {
		before, after []*gpt.Partition
		made          int
		fails         string
	}{
		"an empty table":                      {nil, []*gpt.Partition{made}, 0, ""},
		"behind the last partition":           {[]*gpt.Partition{a}, []*gpt.Partition{a, made}, 1, ""},
		"in an unused entry":                  {[]*gpt.Partition{a, nil, b}, []*gpt.Partition{a, made, b}, 1, ""},
		"before an unused entry":              {[]*gpt.Partition{a, nil, nil}, []*gpt.Partition{a, made, nil}, 1, ""},
		"another partition gets a new number": {[]*gpt.Partition{a, b}, []*gpt.Partition{a, made, b}, 1, "renumber"},
		"the new partition contains another":  {[]*gpt.Partition{a, made}, []*gpt.Partition{a, made, at(2048, 9999)}, 2, "partition 1 is not in the order"},
		"the new partition ends in another":   {[]*gpt.Partition{b}, []*gpt.Partition{at(4096, 8192), b}, 0, "renumber"},
		"the last sector belongs to another":  {[]*gpt.Partition{nil, b}, []*gpt.Partition{at(4096, 8192), b}, 0, "partition 2 is not in the order"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkPlace(c.before, c.after, c.made)
			if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v, want an error with %q", err, c.fails)
			}
		})
	}
}

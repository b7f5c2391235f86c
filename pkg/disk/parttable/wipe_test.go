package parttable

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// journal records the operations on a disk.
type journal struct {
	all []string
	err error
}

func (j *journal) WriteAt(p []byte, at int64) (int, error) {
	j.all = append(j.all, fmt.Sprintf("%d bytes at %d", len(p), at))
	return len(p), j.err
}

func (j *journal) Sync() error {
	j.all = append(j.all, "flush")
	return nil
}

// TestZeroEnds checks that the zeros at the end of an area are on the disk before the beginning is
// overwritten. After an error at the end, the beginning stays.
func TestZeroEnds(t *testing.T) {
	for _, c := range []struct {
		length uint64
		want   []string
	}{
		{100, []string{"8 bytes at 1092", "flush", "8 bytes at 1000", "flush"}},
		{5, []string{"5 bytes at 1000", "flush", "5 bytes at 1000", "flush"}},
	} {
		for _, failure := range []error{nil, errors.New("input/output error")} {
			j, want := &journal{err: failure}, c.want
			if failure != nil {
				want = want[:1]
			}
			if err := ZeroEnds(j, 1000, c.length, 8); !errors.Is(err, failure) || !slices.Equal(j.all, want) {
				t.Errorf("%d bytes, %v: %v, %q", c.length, failure, err, j.all)
			}
		}
	}
}

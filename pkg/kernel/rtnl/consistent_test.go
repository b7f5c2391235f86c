package rtnl

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestConsistent: a list that changes during the read is requested again, but not forever; other
// errors are returned at once.
func TestConsistent(t *testing.T) {
	other := errors.New("no such link")
	for name, c := range map[string]struct {
		fails int // number of failures
		with  error
		asked int
		want  error
	}{
		"at once":      {0, nil, 1, nil},
		"twice":        {2, netlink.ErrDumpInterrupted, 3, nil},
		"all the time": {100, fmt.Errorf("links: %w", netlink.ErrDumpInterrupted), consistentTries, netlink.ErrDumpInterrupted},
		"other":        {100, other, 1, other},
	} {
		asked := 0
		list, err := Consistent(func() (string, error) {
			if asked++; asked <= c.fails {
				return "part", c.with
			}
			return "whole", nil
		})
		if asked != c.asked || !errors.Is(err, c.want) || (err == nil) != (list == "whole") {
			t.Errorf("%s: asked %d times, %q, %v", name, asked, list, err)
		}
	}
}

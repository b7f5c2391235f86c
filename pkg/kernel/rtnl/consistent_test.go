package rtnl

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestConsistent checks that Consistent requests a list again if it has changed during the read, at
// most consistentTries times in all. Any other error is returned after the first request.
func TestConsistent(t *testing.T) {
	other := errors.New("no such link")
	for name, c := range map[string]struct {
		fails int   // number of calls that fail
		with  error // result of a call that fails
		asked int   // expected number of calls
		want  error
	}{
		"no failure":               {0, nil, 1, nil},
		"two interrupted reads":    {2, netlink.ErrDumpInterrupted, 3, nil},
		"each read is interrupted": {100, fmt.Errorf("links: %w", netlink.ErrDumpInterrupted), consistentTries, netlink.ErrDumpInterrupted},
		"another error":            {100, other, 1, other},
	} {
		asked := 0
		list, err := Consistent(func() (string, error) {
			if asked++; asked <= c.fails {
				return "part", c.with
			}
			return "whole", nil
		})
		if asked != c.asked || !errors.Is(err, c.want) || (err == nil) != (list == "whole") {
			t.Errorf("%s: %d calls, %q, %v", name, asked, list, err)
		}
	}
}

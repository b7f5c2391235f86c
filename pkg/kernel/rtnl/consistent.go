package rtnl

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// consistentTries is the maximum number of requests for a list that changes while it is read.
const consistentTries = 10

// Consistent requests a list from the kernel until it is consistent. The kernel marks a list that
// changed during the read (NLM_F_DUMP_INTR, netlink(7)), for example the list of links while pods
// start. If the list is still inconsistent after consistentTries requests, Consistent returns the
// error of the last request.
func Consistent[T any](dump func() (T, error)) (list T, err error) {
	for range consistentTries {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return list, err
}

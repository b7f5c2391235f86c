package rtnl

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// consistentTries is the maximum number of requests for a list that changes during the read.
const consistentTries = 10

// Consistent requests a list from the kernel until it is consistent. The kernel marks a list that
// changed during the read (NLM_F_DUMP_INTR, netlink(7)), for example the list of links while pods
// start. Such a list is an error only after consistentTries requests.
func Consistent[T any](dump func() (T, error)) (list T, err error) {
	for range consistentTries {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return list, err
}

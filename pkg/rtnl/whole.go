package rtnl

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// wholeTries is how often a list is asked for that changes while it is read.
const wholeTries = 10

// Consistent asks the kernel for a list until it has come in one piece: one that changed meanwhile, as
// that of links does while pods begin, is marked by the kernel (NLM_F_DUMP_INTR, netlink(7)) and is
// no error of whoever asks. After wholeTries it is.
func Consistent[T any](dump func() (T, error)) (list T, err error) {
	for range wholeTries {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return list, err
}

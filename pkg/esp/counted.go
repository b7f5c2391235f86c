package esp

import (
	"strings"

	"github.com/orlop-os/orlop/pkg/efivar"
	"github.com/orlop-os/orlop/pkg/slot"
)

// CurrentTrial is the entry on trial by which the loader has started the system that runs, as it has
// said itself (systemd's Boot Loader Interface, LoaderBootCountPath): the entry by the name that it
// has been given for this try. The ESP need not be readable for it.
func CurrentTrial() (slot.Entry, bool) {
	variable, err := efivar.Read(efivar.Dir, efivar.CountedPath)
	if err != nil {
		return slot.Entry{}, false
	}
	return counted(variable)
}

// counted takes the entry from the variable's path.
func counted(variable []byte) (slot.Entry, bool) {
	name, err := efivar.Text(variable)
	if err != nil {
		return slot.Entry{}, false
	}
	return slot.ParseEntry(name[strings.LastIndexByte(name, '\\')+1:])
}

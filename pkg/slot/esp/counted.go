package esp

import (
	"strings"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/slot"
)

// CurrentTrial returns the entry that the boot loader has started, if it is on trial. The entry has
// the name that the boot loader gave it for this try. The source is a variable of the boot loader
// (LoaderBootCountPath of systemd's Boot Loader Interface), so it works even if the ESP cannot be
// read. It returns false for an entry without a try counter, or without the variable.
func CurrentTrial() (slot.Entry, bool) {
	variable, err := bootenv.ReadVariable(bootenv.VariablesDir, bootenv.LoaderCountedPath)
	if err != nil {
		return slot.Entry{}, false
	}
	return counted(variable)
}

// counted returns the entry in the content of the variable.
func counted(variable []byte) (slot.Entry, bool) {
	name, err := bootenv.VariableText(variable)
	if err != nil {
		return slot.Entry{}, false
	}
	return slot.ParseEntry(name[strings.LastIndexByte(name, '\\')+1:])
}

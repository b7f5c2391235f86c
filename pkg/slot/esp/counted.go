package esp

import (
	"strings"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/slot"
)

// CurrentTrial returns the entry on trial that the loader started, from the variable of the loader
// (systemd's Boot Loader Interface, LoaderBootCountPath). The entry has the name of this attempt.
// The ESP need not be readable.
func CurrentTrial() (slot.Entry, bool) {
	variable, err := bootenv.ReadVariable(bootenv.VariablesDir, bootenv.LoaderCountedPath)
	if err != nil {
		return slot.Entry{}, false
	}
	return counted(variable)
}

// counted parses the entry in the path of the variable.
func counted(variable []byte) (slot.Entry, bool) {
	name, err := bootenv.VariableText(variable)
	if err != nil {
		return slot.Entry{}, false
	}
	return slot.ParseEntry(name[strings.LastIndexByte(name, '\\')+1:])
}

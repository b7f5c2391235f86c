package bootenv

import (
	"fmt"
	"strings"
)

// CommandLine is the kernel's file with its command line
// (Documentation/admin-guide/kernel-parameters.rst). The command line is part of the boot image;
// its arguments describe the system to boot.
const CommandLine = "/proc/cmdline"

// Argument returns the value of an argument of a kernel command line. An argument that occurs more
// than once is an error.
func Argument(cmdline, name string) (value string, found bool, err error) {
	for a := range strings.FieldsSeq(cmdline) {
		v, ok := strings.CutPrefix(a, name+"=")
		if ok && found {
			return "", false, fmt.Errorf("kernel command line has more than one %s= argument", name)
		}
		if ok {
			value, found = v, true
		}
	}
	return value, found, nil
}

// Package cmdline reads the kernel command line (Documentation/admin-guide/kernel-parameters.rst).
// By its arguments, the boot image describes the system that it belongs to. The package does not
// interpret the arguments.
package cmdline

import (
	"fmt"
	"strings"
)

// File is the kernel's file with the command line.
const File = "/proc/cmdline"

// Value returns the value of an argument. An argument that occurs more than once is an error.
func Value(cmdline, name string) (value string, found bool, err error) {
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

// Package cmdline reads the kernel command line (Documentation/admin-guide/kernel-parameters.rst),
// which is how the boot image tells the system what it belongs to. It does not know what the
// arguments mean.
package cmdline

import (
	"fmt"
	"strings"
)

// File is where the kernel shows it.
const File = "/proc/cmdline"

// Value finds the value of an argument. One that is there more than once is an error.
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

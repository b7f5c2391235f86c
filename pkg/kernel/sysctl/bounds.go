package sysctl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bound is the minimum value of a parameter with which the system works. A lower value could break
// the next boot. A trial of the configuration might not detect this, because the processes of the
// system run already.
type Bound struct {
	Name   string
	Least  uint64 // minimum; 0 permits every number
	Zero   bool   // 0 is permitted: it means no limit
	Reason string // why a lower value is too low, for the error message
}

const (
	openFiles  = "the system and the pods of one machine open that many files"
	namespaces = "services of the system and each pod have namespaces of their own"
)

// Bounds lists the minimum values. None of them is above the kernel's default on a machine with 1
// GiB of memory. There are no maximum values, because the kernel itself rejects values that are too
// high.
var Bounds = []Bound{
	{Name: "fs.file-max", Least: 32768, Reason: openFiles},
	// This is the hard limit of open files that machined/host sets (planRlimits).
	{Name: "fs.nr_open", Least: 1 << 19, Reason: "the system lets each process open that many files"},
	{Name: "fs.mount-max", Least: 10000, Reason: "services of the system and each container have mounts of their own"},
	{Name: "fs.epoll.max_user_watches", Least: 16384, Reason: openFiles},
	{Name: "fs.pipe-user-pages-hard", Least: 16384, Zero: true, Reason: "services of the system have pipes"},
	{Name: "fs.inotify.max_queued_events", Least: 1024, Reason: "programs of the system would miss changes of files"},
	{Name: "net.core.somaxconn", Least: 128, Reason: "servers of the system have that many waiting connections"},
	{Name: "kernel.threads-max", Least: 4096, Reason: "the system and the pods of one machine have that many threads"},
	{Name: "net.netfilter.nf_conntrack_max", Least: 4096, Zero: true, Reason: "each connection of the machine and its pods takes an entry"},
	{Name: "user.max_cgroup_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_ipc_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_mnt_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_net_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_pid_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_uts_namespaces", Least: 1024, Reason: namespaces},
	// machined/transition limits the memory for huge pages and for vm.min_free_kbytes
	{Name: "vm.nr_hugepages", Reason: "the huge pages must leave memory for the system"},
	// With a lower value, the system is prone to deadlock under load
	// (Documentation/admin-guide/sysctl/vm.rst).
	{Name: "vm.min_free_kbytes", Least: 1024, Reason: "the kernel deadlocks under load with less"},
}

// Number parses a value that is a single number, as the kernel does (proc_get_long in
// kernel/sysctl.c): decimal, octal after 0, hexadecimal after 0x, with blanks around the number.
// Any other value is an error: a number with a sign, a number of 2^64 or more, or several numbers.
// The kernel would use the first of several numbers.
func Number(value string) (uint64, error) {
	digits, base := strings.Trim(value, " \t\v\f\r"), 10
	if hex, is := strings.CutPrefix(strings.ToLower(digits), "0x"); is {
		digits, base = hex, 16
	} else if len(digits) > 1 && digits[0] == '0' {
		base = 8
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a single number from 0 to 2^64-1", value)
	}
	return n, nil
}

// TooLow returns the reason why a value of a parameter is too low for the system, and the minimum
// value. The reason is "" if the value is high enough or the parameter has no minimum. For a value
// that Number cannot parse, the reason is the error of Number.
func TooLow(name, value string) (reason string, least uint64) {
	i := slices.IndexFunc(Bounds, func(b Bound) bool { return b.Name == Canonical(name) })
	if i < 0 {
		return "", 0
	}
	b := Bounds[i]
	n, err := Number(value)
	switch {
	case err != nil:
		return err.Error(), b.Least
	case n >= b.Least || n == 0 && b.Zero:
		return "", 0
	}
	return fmt.Sprintf("%d is too low: %s", n, b.Reason), b.Least
}

// aliases maps second names of parameters to the names in the tables of this package. Both names
// mean the same value of the kernel.
var aliases = map[string]string{
	"net.nf_conntrack_max":       "net.netfilter.nf_conntrack_max",
	"user.max_inotify_instances": "fs.inotify.max_user_instances",
	"user.max_inotify_watches":   "fs.inotify.max_user_watches",
	"vm.nr_hugepages_mempolicy":  "vm.nr_hugepages",
}

// Canonical returns the name that a parameter has in the tables of this package.
func Canonical(name string) string {
	if other, is := aliases[name]; is {
		return other
	}
	return name
}

// alternatives are pairs of parameters for the same setting in two units. A write of either
// parameter sets the other to 0 (dirty_bytes_handler and its siblings in mm/page-writeback.c,
// overcommit_kbytes_handler in mm/util.c).
var alternatives = [][2]string{
	{"vm.dirty_bytes", "vm.dirty_ratio"},
	{"vm.dirty_background_bytes", "vm.dirty_background_ratio"},
	{"vm.overcommit_kbytes", "vm.overcommit_ratio"},
}

// Alternative returns the parameter that the kernel sets to 0 when the named parameter is written;
// "" if there is none.
func Alternative(name string) string {
	for _, pair := range alternatives {
		switch name {
		case pair[0]:
			return pair[1]
		case pair[1]:
			return pair[0]
		}
	}
	return ""
}

// Conflict returns another parameter in the map `all` that sets the same value of the kernel as the
// named parameter; "" if there is none. Only one of two such parameters can take effect.
func Conflict(name string, all map[string]string) string {
	if other := Alternative(name); other != "" {
		if _, both := all[other]; both {
			return other
		}
	}
	for other := range all {
		if other != name && Canonical(other) == Canonical(name) {
			return other
		}
	}
	return ""
}

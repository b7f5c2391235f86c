package sysctl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bound is the least value of a parameter with which the system works. A lower value can pass a
// trial, because the processes of the system run already, and break the next boot.
type Bound struct {
	Name   string
	Least  uint64 // 0: every number is high enough
	Zero   bool   // 0 is permitted: it means no limit
	Reason string // the need; the error message shows it
}

const (
	openFiles  = "the system and the pods of one machine open that many files"
	namespaces = "services of the system and each pod have namespaces of their own"
)

// Bounds lists the least values. None is above the kernel's default on a machine with 1 GiB of
// memory. The kernel itself rejects values that are too high.
var Bounds = []Bound{
	{Name: "fs.file-max", Least: 32768, Reason: openFiles},
	// the hard limit of open files that machined/host sets (planRlimits)
	{Name: "fs.nr_open", Least: 1 << 19, Reason: "the system lets each process open that many files"},
	{Name: "fs.mount-max", Least: 10000, Reason: "services of the system and each container have mounts of their own"},
	{Name: "fs.epoll.max_user_watches", Least: 16384, Reason: openFiles},
	{Name: "fs.pipe-user-pages-hard", Least: 16384, Zero: true, Reason: "services of the system have pipes"},
	{Name: "kernel.threads-max", Least: 4096, Reason: "the system and the pods of one machine have that many threads"},
	{Name: "net.netfilter.nf_conntrack_max", Least: 4096, Zero: true, Reason: "each connection of the machine and its pods takes an entry"},
	{Name: "user.max_cgroup_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_ipc_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_mnt_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_net_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_pid_namespaces", Least: 1024, Reason: namespaces},
	{Name: "user.max_uts_namespaces", Least: 1024, Reason: namespaces},
	// machined/transition limits the memory that huge pages and free pages take
	{Name: "vm.nr_hugepages", Reason: "the huge pages must leave memory for the system"},
	// Documentation/admin-guide/sysctl/vm.rst: below it, the system is prone to deadlock under load
	{Name: "vm.min_free_kbytes", Least: 1024, Reason: "the kernel deadlocks under load with less"},
}

// Number returns the number of a value with a single number, as the kernel reads it (proc_get_long
// in kernel/sysctl.c): decimal, octal after 0, hexadecimal after 0x, with blanks around.
// Any other value is an error: a sign, several numbers, of which the kernel takes the first one, or
// a number from 2^64 on.
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

// TooLow returns why a value of a parameter is too low for the system, and the least value; "" if
// the value is high enough. A value without a single number (Number) is too low.
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

// aliases maps second names of parameters to the names that the tables use. A write to either
// changes both.
var aliases = map[string]string{
	"net.nf_conntrack_max":       "net.netfilter.nf_conntrack_max",
	"user.max_inotify_instances": "fs.inotify.max_user_instances",
	"user.max_inotify_watches":   "fs.inotify.max_user_watches",
	"vm.nr_hugepages_mempolicy":  "vm.nr_hugepages",
}

// Canonical returns the name under which the tables have a parameter.
func Canonical(name string) string {
	if other, is := aliases[name]; is {
		return other
	}
	return name
}

// alternatives are pairs of parameters for one setting, in two units: a write of one sets the other
// to 0 (dirty_bytes_handler and its siblings in mm/page-writeback.c, overcommit_kbytes_handler in
// mm/util.c).
var alternatives = [][2]string{
	{"vm.dirty_bytes", "vm.dirty_ratio"},
	{"vm.dirty_background_bytes", "vm.dirty_background_ratio"},
	{"vm.overcommit_kbytes", "vm.overcommit_ratio"},
}

// Alternative returns the parameter that a write of this one sets to 0; "" if there is none.
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

// Conflict returns the parameter of a configuration that sets the same value as another one of it;
// "" if there is none. Only one of the two could take effect.
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

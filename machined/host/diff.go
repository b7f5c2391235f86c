package host

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// Have is the actual state of the host.
type Have struct {
	Modules   map[string]ModuleState
	Mounts    []mount.Mount // in mount order
	Shared    bool          // / is a shared mount
	Sysctls   map[string]string
	Rlimits   map[string]Rlimit
	Groups    map[string]GroupState
	Home      string
	MachineID string
}

// ModuleState is the state of a kernel module. The zero value means that the image has no such
// module.
type ModuleState struct {
	Loaded bool // the module is loaded, or built into the kernel
	Known  bool // the image has a file for the module, or the module is built into the kernel
}

// GroupState is the state of a control group.
type GroupState struct {
	Files     map[string]string // content of the wanted files that exist
	Available []string          // controllers that the group can delegate
	Delegated []string          // controllers that the group delegates
}

// Verb is the kind of an Op.
type Verb string

// The verbs, each with the fields of Op that it uses.
const (
	LoadModules Verb = "load"      // Names
	MountFS     Verb = "mount"     // Mount
	Remount     Verb = "remount"   // Mount.Target with Mount.Flags; Old: the previous flags
	Share       Verb = "share"     // no field: all mounts
	SetSysctl   Verb = "sysctl"    // Name, Value; Old
	SetRlimit   Verb = "rlimit"    // Rlimit; Old
	MakeGroup   Verb = "group"     // Name
	Delegate    Verb = "hand-down" // Name: the group; Names: controllers
	SetGroup    Verb = "set-group" // Group: the group; Name: the file; Value; Old
	EnterGroup  Verb = "enter"     // Name: the group
	WriteID     Verb = "machine-id"
)

// Op is a single change to the host. Kernel.Bind makes it executable.
type Op struct {
	Verb    Verb
	Group   string
	Name    string
	Names   []string
	Value   string
	Old     string // for String only
	Restore bool   // for String only: SetSysctl restores the value from before the configuration
	Mount   mount.Mount
	Rlimit  Rlimit
}

// String describes the operation for the operator.
func (o Op) String() string {
	switch o.Verb {
	case LoadModules:
		return "load kernel modules " + strings.Join(o.Names, ", ")
	case MountFS:
		return o.Mount.String()
	case Remount:
		return fmt.Sprintf("remount %s (%s → %s)", o.Mount.Target, o.Old, o.Mount.Flags)
	case Share:
		return "make all mounts shared with containers"
	case SetSysctl:
		if o.Restore {
			return fmt.Sprintf("restore kernel parameter %s to %q (was %s)", o.Name, o.Value, o.Old)
		}
		return fmt.Sprintf("set kernel parameter %s = %q (was %s)", o.Name, o.Value, o.Old)
	case SetRlimit:
		return fmt.Sprintf("set resource limit %s (was %s)", o.Rlimit, o.Old)
	case MakeGroup:
		return "create control group " + o.Name
	case Delegate:
		return fmt.Sprintf("delegate %s in control group %s", strings.Join(o.Names, ", "), o.Name)
	case SetGroup:
		return fmt.Sprintf("set %s = %s in control group %s (was %s)", o.Name, o.Value, o.Group, o.Old)
	case EnterGroup:
		return "move machined to control group " + o.Name
	case WriteID:
		return "write machine id " + o.Value
	}
	return string(o.Verb)
}

// String returns a text such as "nofile 1024 to 524288".
func (r Rlimit) String() string {
	word := func(n uint64) string {
		if n == Unlimited {
			return "unlimited"
		}
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%s %s to %s", r.Name, word(r.Soft), word(r.Hard))
}

// Diff returns the operations that turn have into want. Modules come first, because they provide
// file systems and parameters.
func Diff(have Have, want Want) []Op {
	ops := diffModules(have, want)
	ops = append(ops, diffMounts(have, want)...)
	for _, s := range want.Sysctls {
		old, there := have.Sysctls[s.Name]
		if there && sameValue(old, s.Value) ||
			!there && s.Optional {
			continue
		}
		op := Op{Verb: SetSysctl, Name: s.Name, Value: s.Value, Old: strconv.Quote(old), Restore: s.Restore}
		if !there {
			op.Old = "missing"
		}
		ops = append(ops, op)
	}
	for _, r := range want.Rlimits {
		if old := have.Rlimits[r.Name]; old != r {
			ops = append(ops, Op{Verb: SetRlimit, Rlimit: r, Old: strings.TrimPrefix(old.String(), r.Name+" ")})
		}
	}
	ops = append(ops, diffGroups(have, want)...)
	if want.MachineID != "" && have.MachineID != want.MachineID {
		ops = append(ops, Op{Verb: WriteID, Value: want.MachineID})
	}
	return ops
}

// sameValue reports whether `read` is the text that the kernel prints for a parameter that was set
// to the text `set`. The number of blanks does not matter. The base of numbers does not matter
// either: the kernel parses numbers as C does (0x10, 020) and prints them in decimal (proc_dointvec
// in kernel/sysctl.c). The kernel prints lists of ports and of processors as ranges, in ascending
// order (proc_do_large_bitmap).
func sameValue(read, set string) bool {
	a, b := strings.Fields(read), strings.Fields(set)
	return slices.EqualFunc(a, b, func(x, y string) bool {
		if x == y {
			return true
		}
		if have, ok := ranges(x); ok && strings.ContainsAny(x+y, ",-") {
			want, ok := ranges(y)
			return ok && slices.Equal(have, want)
		}
		n, err := strconv.ParseInt(x, 10, 64)
		m, other := strconv.ParseInt(y, 0, 64)
		return err == nil && other == nil && n == m && !strings.ContainsAny(y, "_boBO")
	})
}

// ranges parses a list of numbers and ranges, such as 1,5-7. It returns the ranges in ascending
// order, with adjacent ranges joined; false if text is no such list.
func ranges(text string) (all [][2]uint64, ok bool) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.ParseUint(first, 10, 31)
		if err != nil {
			return nil, false
		}
		b := a
		if isRange {
			if b, err = strconv.ParseUint(last, 10, 31); err != nil || b < a {
				return nil, false
			}
		}
		all = append(all, [2]uint64{a, b})
	}
	slices.SortFunc(all, func(x, y [2]uint64) int { return cmp.Compare(x[0], y[0]) })
	merged := all[:1]
	for _, r := range all[1:] {
		if before := &merged[len(merged)-1]; r[0] <= before[1]+1 {
			before[1] = max(before[1], r[1])
		} else {
			merged = append(merged, r)
		}
	}
	return merged, true
}

func diffModules(have Have, want Want) []Op {
	var names []string
	for _, m := range want.Modules {
		if state := have.Modules[m.Name]; !state.Loaded && (state.Known || !m.Optional) {
			names = append(names, m.Name)
		}
	}
	if names == nil {
		return nil
	}
	// a single operation for all modules, because a load mostly waits, and the waits can overlap
	return []Op{{Verb: LoadModules, Names: names}}
}

func diffMounts(have Have, want Want) []Op {
	var ops []Op
	for _, m := range want.Mounts {
		i := -1
		for j, there := range have.Mounts {
			if there.Target == m.Target {
				i = j // the last mount is on top
			}
		}
		switch {
		case i < 0 || have.Mounts[i].Type != m.Type:
			ops = append(ops, Op{Verb: MountFS, Mount: m})
		case have.Mounts[i].Flags&m.Flags != m.Flags:
			ops = append(ops, Op{Verb: Remount, Mount: m, Old: have.Mounts[i].Flags.String()})
		}
	}
	// A mount below a shared mount is shared from the beginning, so a single operation after the
	// first mounts is enough.
	if want.Shared && !have.Shared {
		ops = append(ops, Op{Verb: Share})
	}
	return ops
}

func diffGroups(have Have, want Want) []Op {
	var ops []Op
	given := map[string][]string{} // controllers that the operations so far delegate, by group
	for _, g := range want.Groups {
		state, there := have.Groups[g.Path]
		if !there && g.Path != "/" {
			ops = append(ops, Op{Verb: MakeGroup, Name: g.Path})
		}
		for _, file := range slices.Sorted(maps.Keys(g.Files)) {
			old, known := state.Files[file]
			if known && old == g.Files[file] {
				continue
			}
			if !known {
				old = "missing"
			}
			ops = append(ops, Op{Verb: SetGroup, Group: g.Path, Name: file, Value: g.Files[file], Old: old})
		}
		// A group can delegate the controllers that an earlier operation gives it; a group that
		// does not exist yet can delegate the controllers of the root. If the hierarchy is not
		// mounted yet, the operation itself reads the available controllers, and skips controllers
		// that are not available.
		available := slices.Concat(state.Available, given[path.Dir(g.Path)])
		if !there {
			available = have.Groups["/"].Available
		}
		_, mounted := have.Groups["/"]
		var down []string
		for _, c := range g.Delegated {
			if (slices.Contains(available, c) || !mounted) && !slices.Contains(state.Delegated, c) {
				down = append(down, c)
			}
		}
		if down != nil {
			given[g.Path] = down
			ops = append(ops, Op{Verb: Delegate, Name: g.Path, Names: down})
		}
	}
	if want.Home != "" && have.Home != want.Home {
		ops = append(ops, Op{Verb: EnterGroup, Name: want.Home})
	}
	return ops
}

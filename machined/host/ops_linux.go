package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// Bind makes operations executable on this kernel.
func (k *Kernel) Bind(ops []Op) []reconcile.Op {
	bound := make([]reconcile.Op, len(ops))
	for i, op := range ops {
		bound[i] = boundOp{op, k}
	}
	return bound
}

type boundOp struct {
	Op
	kernel *Kernel
}

// Do implements reconcile.Op.
func (b boundOp) Do(context.Context) error { return b.kernel.do(b.Op) }

// Diff returns a function for reconcile.Config.Diff. The function returns the operations that lead
// to the current result of plan.
func (k *Kernel) Diff(plan func() Want) reconcile.Diff {
	return func(context.Context) ([]reconcile.Op, error) {
		want := plan()
		have, err := k.Read(want)
		if err != nil {
			return nil, err
		}
		return k.Bind(Diff(have, want)), nil
	}
}

func (k *Kernel) do(o Op) error {
	switch o.Verb {
	case LoadModules:
		k.recordLoaded(o.Names)
		return k.LoadModules(o.Names...)
	case MountFS:
		return o.Mount.Do()
	case Remount:
		return remount(o.Mount)
	case Share:
		return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
	case SetSysctl:
		k.recordPrevious(o.Name)
		// The newline matters for an empty value: a write of zero bytes has no effect.
		return os.WriteFile(k.sysctlPath(o.Name), []byte(o.Value+"\n"), 0)
	case SetRlimit:
		resource, err := rlimitNumber(o.Rlimit.Name)
		if err != nil {
			return err
		}
		// Package syscall also applies the limit to child processes (see its documentation of
		// Setrlimit and open files).
		return syscall.Setrlimit(resource, &syscall.Rlimit{Cur: o.Rlimit.Soft, Max: o.Rlimit.Hard})
	case MakeGroup:
		return os.MkdirAll(filepath.Join(string(k.tree), o.Name), 0o755)
	case Delegate:
		return k.delegate(o.Name, o.Names)
	case SetGroup:
		return k.tree.Set(o.Group, map[string]string{o.Name: o.Value})
	case EnterGroup:
		return k.tree.Move(o.Name, os.Getpid())
	case WriteID:
		return k.writeID(o.Value)
	}
	return fmt.Errorf("operation %q: unknown", o.Verb)
}

// LoadModules loads kernel modules with their dependencies. An unknown module does not block the
// others.
func (k *Kernel) LoadModules(names ...string) error {
	index, err := k.Modules()
	if err != nil {
		return err
	}
	steps, unknown := index.Plan(names...) // plans the other modules even with an error
	return errors.Join(unknown, kmod.Load(steps))
}

// remount changes the flags of a mount. With MS_BIND, the kernel does not change the flags of the
// file system, which other mounts may share (mount(2)). Stricter flags that the mount already has
// are preserved.
func remount(m mount.Mount) error {
	have, there, err := mount.At(m.Target)
	if err != nil {
		return err
	}
	if !there {
		return errors.New("no file system is mounted there")
	}
	bits := uintptr(unix.MS_REMOUNT | unix.MS_BIND)
	for flag, bit := range map[mount.Flags]uintptr{
		mount.ReadOnly: unix.MS_RDONLY, mount.NoSuid: unix.MS_NOSUID, mount.NoDev: unix.MS_NODEV,
		mount.NoExec: unix.MS_NOEXEC, mount.NoAtime: unix.MS_NOATIME,
	} {
		if (have.Flags|m.Flags)&flag != 0 {
			bits |= bit
		}
	}
	return unix.Mount("", m.Target, "", bits, "")
}

// delegate delegates the wanted controllers, apart from those that the group does not have.
func (k *Kernel) delegate(group string, wanted []string) error {
	available, err := k.tree.Read(group, "cgroup.controllers")
	if err != nil {
		return err
	}
	there := slices.DeleteFunc(slices.Clone(wanted), func(c string) bool { return !slices.Contains(strings.Fields(available), c) })
	return k.tree.Delegate(group, there)
}

// writeID replaces the file atomically: the kubelet must never read a partial file.
func (k *Kernel) writeID(id string) error {
	if err := os.MkdirAll(filepath.Dir(k.machineID), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(k.machineID, []byte(id+"\n"), 0o444)
}

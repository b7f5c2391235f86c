package localvolumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// clearing removes volumes beside everything else: millions of files take minutes. The zero value
// is ready.
type clearing struct {
	mu      sync.Mutex
	busy    bool
	failed  error          // why the last removal left something
	running sync.WaitGroup // until nothing is removed any more
}

// start lets a removal begin unless one goes on, and returns why the last one left something. ended
// is called when something is gone, or when nothing is left.
func (c *clearing) start(do func() (some bool, err error), ended func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy {
		return nil
	}
	failed := c.failed
	c.busy, c.failed = true, nil
	c.running.Go(func() {
		some, err := do()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.busy, c.failed = false, err
		if some || err == nil {
			ended()
		}
	})
	return failed
}

// clear goes on with the removal of what is out of use, and says why some was left the last time.
func (n *node) clear(ctx context.Context) error {
	if len(n.store.retired()) == 0 {
		return nil
	}
	return n.clearing.start(func() (some bool, err error) {
		for _, name := range n.store.retired() {
			failed := n.store.clear(ctx, name)
			some = some || failed == nil
			err = errors.Join(err, failed)
		}
		return some, err
	}, n.change)
}

const (
	// mostOpen is how many folders that lie within each other are open at a time while a tree is
	// removed. os.RemoveAll has all of them open, with 8 KiB each: a pod can make hundreds of
	// thousands in a small volume, which would take descriptors and memory of the whole process.
	mostOpen = 64
	// atOnce is how many names are read of each of them.
	atOnce = 128
)

// tree is a folder that is being removed.
type tree struct {
	ctx   context.Context
	top   int // descriptor
	own   func(folder string) error
	moved int // folders that were moved to the top
}

// removeTree removes a folder with all that is in it, until ctx is done. What is in it may be
// hostile, and nobody else writes there. It follows no symbolic link. Folders that lie deeper than
// mostOpen are moved to the top and go from there; own gives one to the top's project, because the
// kernel moves nothing between projects. What cannot be removed does not keep the rest.
func removeTree(ctx context.Context, folder string, own func(folder string) error) error {
	top, err := os.OpenFile(folder, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer top.Close()
	t := &tree{ctx: ctx, top: int(top.Fd()), own: own}
	if err := t.empty(top, 0); err != nil {
		return err
	}
	return os.Remove(folder)
}

// empty removes all that is in a folder.
func (t *tree) empty(folder *os.File, depth int) error {
	for {
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		// From the beginning each time: the kernel may order anew what is left.
		if _, err := folder.Seek(0, 0); err != nil {
			return err
		}
		var problems error
		for removed := false; !removed; {
			names, err := folder.Readdirnames(atOnce)
			if errors.Is(err, io.EOF) {
				return problems
			}
			if err != nil {
				return err
			}
			for _, name := range names {
				if t.ctx.Err() != nil {
					return context.Cause(t.ctx)
				}
				if err := t.remove(int(folder.Fd()), name, depth); err == nil {
					removed = true
				} else if problems == nil { // one of millions is enough
					problems = fmt.Errorf("%q: %w", name, err)
				}
			}
		}
	}
}

// remove removes one entry of a folder.
func (t *tree) remove(folder int, name string, depth int) error {
	err := unix.Unlinkat(folder, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	err = unix.Unlinkat(folder, name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	if depth == mostOpen {
		return t.lift(folder, name)
	}
	fd, err := unix.Openat(folder, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	below := os.NewFile(uintptr(fd), name)
	defer below.Close()
	if err := t.empty(below, depth+1); err != nil {
		return err
	}
	return unix.Unlinkat(folder, name, unix.AT_REMOVEDIR)
}

// lift moves a folder to the top.
func (t *tree) lift(folder int, name string) error {
	for owned := false; ; {
		err := unix.Renameat2(folder, name, t.top, fmt.Sprint("deep-", t.moved), unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST): // somebody has given this name to one of his
			t.moved++
		case errors.Is(err, unix.EXDEV) && !owned:
			if err := t.own(filepath.Join("/proc/self/fd", fmt.Sprint(folder), name)); err != nil {
				return err
			}
			owned = true
		default:
			t.moved++
			return err
		}
	}
}

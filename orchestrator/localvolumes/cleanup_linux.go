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

// clearing removes volumes in the background, because the removal of millions of files takes
// minutes. The zero value is ready for use.
type clearing struct {
	mu      sync.Mutex
	busy    bool
	failed  error          // the error of the last removal
	running sync.WaitGroup // ends with the removal in progress
}

// start runs do in the background and returns the error of the last removal. While a removal is in
// progress, start does nothing and returns nil. do returns whether it has removed some volumes.
// start calls ended if do has removed some volumes or has not failed.
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

// clear starts the removal of all retired volumes in the background, and returns the error of the
// last attempt.
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
	}, n.changed.Wake)
}

const (
	// maxOpenDepth is the largest number of nested directories that are open at a time during a
	// removal. os.RemoveAll would open all of them, with 8 KiB each. A pod can nest hundreds of
	// thousands of directories in a small volume, which would exhaust the descriptors and the
	// memory of the process.
	maxOpenDepth = 64
	// readBatch is the number of names in a single read of a directory.
	readBatch = 128
)

// tree is the state of removeTree.
type tree struct {
	ctx   context.Context
	top   int // file descriptor of the top directory
	own   func(dir string) error
	moved int // number of the next name in the top directory
}

// removeTree removes a directory with its contents, which can be hostile. No other process may
// write to the directory meanwhile. removeTree follows no symbolic links, and stops with an error
// when ctx is done.
//
// It moves directories that are deeper than maxOpenDepth to the top directory and removes them
// there. Before such a move, own assigns the directory to the project of the top directory if
// necessary, because the kernel rejects moves between projects. An entry that cannot be removed
// does not stop the removal of other entries.
func removeTree(ctx context.Context, dir string, own func(dir string) error) error {
	top, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
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
	return os.Remove(dir)
}

// empty removes the contents of a directory. It returns the first error of an entry that cannot be
// removed.
func (t *tree) empty(dir *os.File, depth int) error {
	for {
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		// Each round reads the directory from its beginning, because the kernel may reorder the
		// remaining entries after a removal.
		if _, err := dir.Seek(0, 0); err != nil {
			return err
		}
		var problems error
		for removed := false; !removed; {
			names, err := dir.Readdirnames(readBatch)
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
				if err := t.remove(int(dir.Fd()), name, depth); err == nil {
					removed = true
				} else if problems == nil { // only the first error of possibly millions
					problems = fmt.Errorf("%q: %w", name, err)
				}
			}
		}
	}
}

// remove removes an entry of the directory with descriptor dir. depth is the number of directories
// above dir.
func (t *tree) remove(dir int, name string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	if depth == maxOpenDepth {
		return t.lift(dir, name)
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	below := os.NewFile(uintptr(fd), name)
	defer below.Close()
	if err := t.empty(below, depth+1); err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// lift moves a directory to the top directory, under a name that is not in use there.
func (t *tree) lift(dir int, name string) error {
	for owned := false; ; {
		err := unix.Renameat2(dir, name, t.top, fmt.Sprint("deep-", t.moved), unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST): // the pod has used this name
			t.moved++
		case errors.Is(err, unix.EXDEV) && !owned:
			if err := t.own(filepath.Join("/proc/self/fd", fmt.Sprint(dir), name)); err != nil {
				return err
			}
			owned = true
		default:
			t.moved++
			return err
		}
	}
}

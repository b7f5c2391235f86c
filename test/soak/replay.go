package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/orlop-os/orlop/vm"
	"github.com/orlop-os/orlop/vm/writelog"
)

// replayer provides the disk of the recorded machine at any instant, in a single file. Machines
// that boot from the file do not write to it. For a later instant, replayer adds only the
// operations in between.
type replayer struct {
	*recording
	log   *writelog.Log
	image string // first disk of the recorded machine
	dir   string // directory of the file
	disk  writelog.Disk
}

func newReplayer(r *recording, log, image, dir string) (*replayer, error) {
	f, err := os.Open(log) // remains open until this process ends
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	l, err := writelog.Read(f, info.Size())
	if err != nil {
		return nil, err
	}
	return &replayer{recording: r, log: l, image: image, dir: dir}, os.MkdirAll(dir, 0o755)
}

func (r *replayer) file() string { return filepath.Join(r.dir, diskName+".raw") }

// set changes the file to the state after the first operations of the log and the given pieces of
// later operations. The parameter flushed is the number of these first operations. If the file
// already contains later operations, set starts again with a copy of the image.
func (r *replayer) set(ctx context.Context, flushed int, pieces []writelog.Piece) error {
	if r.disk.Image != nil {
		if err := r.disk.Set(flushed, pieces); !errors.Is(err, writelog.ErrAlreadyApplied) {
			return err
		}
	}
	if err := copySparse(ctx, r.image, r.file()); err != nil {
		return err
	}
	if err := os.Truncate(r.file(), diskMiB<<20); err != nil {
		return err
	}
	f, err := os.OpenFile(r.file(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if old, ok := r.disk.Image.(*os.File); ok {
		old.Close() // the file has been deleted, so an error has no effect
	}
	r.disk = writelog.Disk{Log: r.log, Image: f}
	return r.disk.Set(flushed, pieces)
}

func copySparse(ctx context.Context, from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "--sparse=always", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("disk image: cannot copy: %w: %s", err, out)
	}
	return nil
}

// replayed draws an instant of a class, and a disk that the recorded machine could have after a
// power cut at this instant. It boots a machine from the disk and checks the recovery.
func (s *soak) replayed(ctx context.Context, luck *rand.Rand, r *result) error {
	n := instant(s.replay.recording, s.replay.log, r.Class, luck)
	flushed, pieces := s.replay.log.Survivors(n, luck)
	r.Instant = fmt.Sprintf("after %d of %d operations, %d of %d unflushed ones on the disk", n, len(s.replay.log.Ops), len(pieces), n-flushed)
	if err := s.replay.set(ctx, flushed, pieces); err != nil {
		return err
	}
	var length int64
	if n > 0 {
		length = s.replay.log.Ops[n-1].End
	}
	// Each machine begins with a new console log and new firmware variables.
	dir := filepath.Join(s.dir, "machine")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Link(s.replay.file(), filepath.Join(dir, diskName+".raw")); err != nil {
		return err
	}
	m, err := powerOn(ctx, s.options, dir, vm.Disk{Forget: true})
	if err != nil {
		return err
	}
	err = s.check(ctx, m, s.replay.promised(length), s.replay.acknowledged(length), r)
	if err = errors.Join(err, m.off()); err != nil || r.Outcome == recovered {
		return err
	}
	r.Kept, err = s.keep(ctx, r.Number, dir)
	return err
}

// keep copies the directory of a machine that failed, and returns the path of the copy.
func (s *soak) keep(ctx context.Context, number int, dir string) (string, error) {
	to := filepath.Join(s.dir, "failed", fmt.Sprintf("cut-%d", number))
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if err := copySparse(ctx, filepath.Join(dir, f.Name()), filepath.Join(to, f.Name())); err != nil {
			return "", err
		}
	}
	return to, nil
}

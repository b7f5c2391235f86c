package diskprobe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Start runs the examining process until it exits, and returns at most limit bytes of its standard
// output. question is its standard input. The process inherits `files` as the descriptors from 3
// on.
type Start func(ctx context.Context, question []byte, files []*os.File, limit int) ([]byte, error)

// Probe opens a disk and its partitions read-only, runs the examining process, and validates its
// result. The opening can block, too, if a disk does not answer; Prober bounds the time of the
// whole call.
func Probe(ctx context.Context, d Device, f *File, start Start) (Result, error) {
	disk, err := openDevice(d.Path)
	if err != nil {
		return Result{}, err
	}
	defer disk.Close()
	q, files := Request{Disk: d.Path, File: f}, []*os.File{disk}
	for _, p := range d.Partitions[:min(len(d.Partitions), maxOpen)] {
		part, err := openDevice(p.Path)
		if errors.Is(err, ErrNoMedium) {
			continue // the partition has just disappeared
		}
		if err != nil {
			return Result{}, err
		}
		defer part.Close()
		q.Partitions, files = append(q.Partitions, p.Number), append(files, part)
	}
	question, err := json.Marshal(q)
	if err != nil {
		return Result{}, fmt.Errorf("cannot encode the request: %w", err)
	}
	limit := MaxResult
	if f != nil {
		limit += 2 * int(f.MaxSize) // in Base64
	}
	text, err := start(ctx, question, files, limit)
	if err != nil {
		return Result{}, fmt.Errorf("the examination failed: %w", err)
	}
	a, err := decode(text, d, f)
	switch {
	case err != nil:
		return Result{}, err
	case a.Problem != "" && d.Optical: // an empty CD drive has a size, but all reads fail
		return Result{}, fmt.Errorf("%w: %s", ErrNoMedium, a.Problem)
	case a.Problem != "":
		return Result{}, errors.New(a.Problem)
	case a.Size == 0:
		return Result{}, ErrNoMedium
	}
	return a, nil
}

// openDevice opens a device for reading.
func openDevice(path string) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOMEDIUM) || errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNoMedium, err)
	}
	return f, err
}

package localvolumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/copytree"
	"github.com/orlop-os/orlop/pkg/projectquota"
)

// slack is what a copy may take beyond its size while it is made: how many blocks hold a file's
// extents depends on where the disk has room, so a copy of a full volume can need a few more than
// that.
func slack(size int64) int64 { return size/64 + 1<<20 }

// errWait says that a copy cannot be made now, and that nothing is wrong.
type errWait string

func (e errWait) Error() string { return string(e) }

// inUse says that a copy waits for pods.
type inUse struct {
	volume string
	places []string // where it is mounted
}

func (e inUse) Error() string {
	return fmt.Sprintf("volume %s is mounted at %s", e.volume, strings.Join(e.places, ", "))
}

// job is a copy that was begun: what it is made of is neither shown nor destroyed until it is
// finished.
type job struct {
	copy     Copy
	project  uint32
	from, to string
}

// reserve begins a copy. What is copied must be whole, and mounted nowhere: of a folder that is
// written to while it is read, a copy has some files as they were before others. From then on the
// source can be neither shown nor removed, until finish.
func (s *store) reserve(c Copy) (job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, there := s.all[c.Name]; there {
		if v.going {
			return job{}, errWait(fmt.Sprintf("%s is being destroyed", c.Name))
		}
		return job{}, errWait(fmt.Sprintf("%s is there, or being made, already", c.Name))
	}
	if gone, err := s.gone(); err != nil {
		return job{}, err
	} else if strings.Contains(gone, c.Name+"\n") {
		return job{}, errWait(fmt.Sprintf("%s was destroyed before: its data are lost", c.Name))
	}
	source, there := s.all[c.Of]
	switch {
	case !there && isSnapshot(c.Of):
		return job{}, errWait(fmt.Sprintf("snapshot %s is not on this node", c.Of))
	case !there:
		return job{}, errWait(fmt.Sprintf("volume %s is not on this node: no pod has used it yet, or it was destroyed", c.Of))
	case source.going:
		return job{}, errWait(fmt.Sprintf("%s is being destroyed", c.Of))
	case source.making:
		return job{}, errWait(fmt.Sprintf("%s is not whole yet itself", c.Of))
	}
	places, err := s.mountedAt(c.Of)
	if err != nil {
		return job{}, err
	}
	if len(places) > 0 {
		return job{}, inUse{c.Of, places}
	}
	if err := s.fits(c, source); err != nil {
		return job{}, err
	}
	j := job{copy: c, project: s.next, from: filepath.Join(s.root, volumes, c.Of), to: filepath.Join(s.root, making, c.Name)}
	s.next++
	if err := os.Mkdir(j.to, 0o700); err != nil {
		return job{}, fmt.Errorf("%s: cannot be made: %w", c.Name, err)
	}
	s.all[c.Name] = volume{project: j.project, size: c.Size, making: true}
	s.reading[c.Of]++
	return j, nil
}

// fits says whether as much is left on the disk as is in what is copied, without that the kubelet
// puts pods out: what is promised to volumes may have been taken by others.
func (s *store) fits(c Copy, source volume) error {
	_, used, err := s.quotas.Get(s.root, source.project)
	if err != nil {
		return err
	}
	free, size, err := s.left()
	if err != nil {
		return fmt.Errorf("cannot see how much is left on the disk: %w", err)
	}
	if free-int64(used.Bytes) < size*spared/100 {
		return fmt.Errorf("%s is in %s, and %s are left on the disk, of which %s have to stay: delete images, logs or volumes",
			humanSize(int64(used.Bytes)), c.Of, humanSize(free), humanSize(size*spared/100))
	}
	return nil
}

// work makes the copy, which waits for everybody else at the disk and cannot take more than it is
// to have, and returns its limit: a volume's is its size, a snapshot's is what is in it, because
// nobody writes to it. Without an error the copy is on the disk, whole, and nobody uses it yet.
func (s *store) work(ctx context.Context, j job) (size int64, err error) {
	size = j.copy.Size
	if err := errors.Join(s.limit(j.project, size+slack(size)), s.quotas.Assign(j.to, j.project)); err != nil {
		return size, err
	}
	err = projectquota.Limited(func() error {
		if err := copytree.Idle(); err != nil {
			return err
		}
		return copytree.Copy(ctx, j.from, j.to)
	})
	if errors.Is(err, unix.EDQUOT) {
		return size, fmt.Errorf("more is in %s than %s can have (%s): %w", j.copy.Of, j.copy.Name, humanSize(size), err)
	}
	if err == nil {
		err = persistAll(s.root) // the blocks of what is on its way are counted when it is there
	}
	if err != nil {
		return size, err
	}
	if !isSnapshot(j.copy.Name) {
		return size, errors.Join(s.limit(j.project, size), persistAll(s.root))
	}
	_, used, err := s.quotas.Get(s.root, j.project)
	if err != nil {
		return size, err
	}
	// none would be no limit
	keeps := projectquota.Limit{Bytes: max(used.Bytes, 1<<10), Inodes: max(used.Inodes, 1)}
	return int64(keeps.Bytes), errors.Join(s.quotas.SetLimit(s.root, j.project, keeps), persistAll(s.root))
}

// finish ends a copy of this limit: after work without an error it can be used, otherwise what was
// made of it is to be removed.
func (s *store) finish(j job, size int64, failed error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading[j.copy.Of]--; s.reading[j.copy.Of] == 0 {
		delete(s.reading, j.copy.Of)
	}
	target := volumes
	if failed != nil {
		target = removing
	}
	if err := os.Rename(j.to, filepath.Join(s.root, target, j.copy.Name)); err != nil {
		// it stays as it is until the next start
		return errors.Join(failed, fmt.Errorf("%s: cannot be put in place: %w", j.copy.Name, err))
	}
	s.all[j.copy.Name] = volume{project: j.project, size: size, going: failed != nil}
	return errors.Join(failed, persist(filepath.Join(s.root, target)))
}

// whole says of a copy whether it is there, and since when: its folder was made when it began.
func (s *store) whole(name string) (since int64, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, there := s.all[name]
	if !there || v.going || v.making {
		return 0, false, nil
	}
	folder := filepath.Join(s.root, volumes, name)
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, folder, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &x); err != nil {
		return 0, false, fmt.Errorf("%s: cannot see when it was made: %w", name, err)
	}
	if x.Mask&unix.STATX_BTIME == 0 {
		return 0, false, fmt.Errorf("%s: its file system does not tell when it was made", name)
	}
	return x.Btime.Sec, true, nil
}

// mountedAt returns where a volume, or a part of it, is mounted.
func (s *store) mountedAt(name string) ([]string, error) {
	mounts, err := s.mounts()
	if err != nil {
		return nil, fmt.Errorf("volume %s: cannot see whether it is mounted: %w", name, err)
	}
	var places []string
	for _, m := range mounts {
		if fmt.Sprint(m.Major, ":", m.Minor) == s.device && strings.HasPrefix(m.Root+"/", filepath.Join(s.within, volumes, name)+"/") {
			places = append(places, m.Mountpoint)
		}
	}
	slices.Sort(places)
	return places, nil
}

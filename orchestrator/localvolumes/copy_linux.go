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

	"github.com/orlop-os/orlop/orchestrator/localvolumes/projectquota"
	"github.com/orlop-os/orlop/pkg/copytree"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// slack returns how many bytes more than size a copy may use until it is complete. The number of
// blocks for the extents of a file depends on the free areas of the disk, so a copy of a full
// volume can need a few more blocks than its source.
func slack(size int64) int64 { return size/64 + 1<<20 }

// errWait is the reason why a copy has to wait. It is no failure of the node.
type errWait string

func (e errWait) Error() string { return string(e) }

// inUse is the error of a copy that has to wait because its source is mounted.
type inUse struct {
	volume string
	places []string // the mount points of the volume
}

func (e inUse) Error() string {
	return fmt.Sprintf("volume %s is mounted at %s", e.volume, strings.Join(e.places, ", "))
}

// job is a copy in progress. Its source cannot be mounted or destroyed before finish.
type job struct {
	copy     Copy
	project  uint32
	from, to string
}

// reserve begins a copy and creates its directory. It fails with errWait or inUse if the copy has
// to wait. The source must be complete and must not be mounted, because a copy of a directory that
// changes would mix files of different times. From reserve to finish, the source cannot be mounted
// or destroyed.
func (s *store) reserve(c Copy) (job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, there := s.all[c.Name]; there {
		if v.retired {
			return job{}, errWait(fmt.Sprintf("%s is being destroyed", c.Name))
		}
		return job{}, errWait(fmt.Sprintf("%s exists already or is being created", c.Name))
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
	case source.retired:
		return job{}, errWait(fmt.Sprintf("%s is being destroyed", c.Of))
	case source.making:
		return job{}, errWait(fmt.Sprintf("%s is not complete yet itself", c.Of))
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

// fits returns an error if the copy would leave so little free space that the kubelet evicts pods
// (evictionPercent). This can happen although Step has promised the space, because other files can
// use the space that is promised to volumes.
func (s *store) fits(c Copy, source volume) error {
	_, used, err := s.quotas.Get(s.root, source.project)
	if err != nil {
		return err
	}
	free, size, err := s.left()
	if err != nil {
		return fmt.Errorf("cannot read the free space of the disk: %w", err)
	}
	if free-int64(used.Bytes) < size*evictionPercent/100 {
		return fmt.Errorf("%s is in %s, the disk has %s free, and %s must stay free: delete images, logs or volumes",
			humanSize(int64(used.Bytes)), c.Of, humanSize(free), humanSize(size*evictionPercent/100))
	}
	return nil
}

// work copies the files with idle I/O priority and within a quota. It returns the final quota in
// bytes: the size of a volume, or the size of the contents of a snapshot, because a snapshot has no
// writer. If work returns no error, the whole copy is on the disk, and finish makes it usable.
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
		return size, fmt.Errorf("%s contains more than %s can have (%s): %w", j.copy.Of, j.copy.Name, humanSize(size), err)
	}
	if err == nil {
		err = persistAll(s.root) // the kernel counts delayed blocks when it writes them
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
	// A limit of 0 would mean no limit, so the smallest limits are 1 KiB and 1 inode.
	keeps := projectquota.Limit{Bytes: max(used.Bytes, 1<<10), Inodes: max(used.Inodes, 1)}
	return int64(keeps.Bytes), errors.Join(s.quotas.SetLimit(s.root, j.project, keeps), persistAll(s.root))
}

// finish ends a copy. failed is the error of work, and size its final quota. Without an error,
// finish makes the copy usable. With an error, it moves the files to the directory removing and
// returns the error.
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
		// The copy stays in the directory making until openStore removes it.
		return errors.Join(failed, fmt.Errorf("%s: cannot be moved into place: %w", j.copy.Name, err))
	}
	s.all[j.copy.Name] = volume{project: j.project, size: size, retired: failed != nil}
	return errors.Join(failed, safefile.SyncDir(filepath.Join(s.root, target)))
}

// whole returns whether a copy is complete (ok), and when it began, in seconds since 1970. This
// time is the creation time of its directory.
func (s *store) whole(name string) (since int64, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, there := s.all[name]
	if !there || v.retired || v.making {
		return 0, false, nil
	}
	dir := filepath.Join(s.root, volumes, name)
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &x); err != nil {
		return 0, false, fmt.Errorf("%s: cannot read its creation time: %w", name, err)
	}
	if x.Mask&unix.STATX_BTIME == 0 {
		return 0, false, fmt.Errorf("%s: its file system does not report the creation time", name)
	}
	return x.Btime.Sec, true, nil
}

// mountedAt returns the sorted mount points of a volume and of directories in it.
func (s *store) mountedAt(name string) ([]string, error) {
	mounts, err := s.mounts()
	if err != nil {
		return nil, fmt.Errorf("volume %s: cannot determine whether it is mounted: %w", name, err)
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

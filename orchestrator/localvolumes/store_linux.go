package localvolumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/renameio/v2"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/orchestrator/localvolumes/projectquota"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// The directories below the store's root. A volume is created in the first, used in the second and
// removed in the third, and moves between them by rename(2), so at any moment it is either complete
// or unused.
const (
	making   = "making"
	volumes  = "volumes"
	removing = "removing"
)

// destroyed is a file with the names of destroyed volumes, one per line. A restore of the cluster's
// data may restore the object of a destroyed volume; an empty directory must not pass for its lost
// data. maxDestroyed is the maximal size of the file in bytes.
const (
	destroyed    = "destroyed"
	maxDestroyed = 1 << 20
)

// firstProject is the first project number of volumes, far from the numbers of other programs (the
// kubelet's own begin at 2²⁰). lastProject is the end, 2³⁰ volumes later.
const firstProject, lastProject = 1 << 24, 1<<24 + 1<<30

// nothing is the limit of the project of a removed volume. A process may still have a file of it
// open.
var nothing = projectquota.Limit{Bytes: 1 << 10, Inodes: 1}

// inodeShare is the bytes of a volume per inode, the same ratio as DATA (pkg/disk/mkfs). minInodes
// is the number of inodes of a small volume.
const (
	inodeShare = 16 << 10
	minInodes  = 256
)

// quotas are the store's operations of the kernel; tests have a fake.
type quotas interface {
	Enforce(dir string) error
	Assign(dir string, project uint32) error
	Of(dir string) (uint32, error)
	SetLimit(dir string, project uint32, limit projectquota.Limit) error
	Get(dir string, project uint32) (projectquota.Limit, projectquota.Usage, error)
}

// kernelQuotas implements quotas with package projectquota.
type kernelQuotas struct{}

func (kernelQuotas) Enforce(dir string) error { return projectquota.Enforce(dir) }

// projectAttr is the extended attribute of a volume's directory that records its project, in
// decimal. A pod that owns the directory can change its project (FS_IOC_FSSETXATTR), for example to
// another tenant's, and use that tenant's space; it cannot write attributes of this kind (xattr(7),
// trusted).
const projectAttr = "trusted.orlop.project"

// Assign assigns a directory to a project and records the project.
func (kernelQuotas) Assign(dir string, id uint32) error {
	if err := unix.Lsetxattr(dir, projectAttr, []byte(strconv.FormatUint(uint64(id), 10)), 0); err != nil {
		return fmt.Errorf("%s: cannot record its project: %w", dir, err)
	}
	return projectquota.Assign(dir, id)
}

// Of returns the recorded project of a directory, and restores it if it was changed.
func (kernelQuotas) Of(dir string) (uint32, error) {
	is, err := projectquota.Of(dir)
	if err != nil {
		return 0, err
	}
	text := make([]byte, 16)
	n, err := unix.Lgetxattr(dir, projectAttr, text)
	if errors.Is(err, unix.ENODATA) {
		return is, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%s: cannot read the recorded project: %w", dir, err)
	}
	noted, err := strconv.ParseUint(string(text[:n]), 10, 32)
	if err != nil || uint32(noted) == is {
		return is, nil
	}
	return uint32(noted), projectquota.Assign(dir, uint32(noted))
}

func (kernelQuotas) SetLimit(dir string, id uint32, l projectquota.Limit) error {
	return projectquota.SetLimit(dir, id, l)
}
func (kernelQuotas) Get(dir string, id uint32) (projectquota.Limit, projectquota.Usage, error) {
	return projectquota.Get(dir, id)
}

// volume is a volume or snapshot on the disk.
type volume struct {
	project   uint32
	size      int64 // its quota on the disk, bytes
	requested int64 // the requested new size; less than size, or 0: none
	retired   bool  // in removal
	making    bool  // an incomplete copy
}

// store is the directory of all volumes and snapshots of a node. It is safe for concurrent use.
type store struct {
	root    string
	device  string // major:minor of its file system …
	within  string // … and its path in that file system
	quotas  quotas
	mounts  func() ([]*mountinfo.Info, error)
	left    func() (free, size int64, err error) // of the file system, bytes
	mu      sync.Mutex
	all     map[string]volume
	reading map[string]int // number of copies in progress of each source
	next    uint32         // next project
}

// locate determines the store's device and its path in the file system, in the form of mountinfo.
func (s *store) locate() error {
	above, err := mountinfo.GetMounts(mountinfo.ParentsFilter(s.root))
	if err != nil {
		return fmt.Errorf("cannot determine where volumes are mounted: %w", err)
	}
	var at *mountinfo.Info
	for _, m := range above {
		// a later mount at the same place hides the earlier mount
		if at == nil || len(m.Mountpoint) >= len(at.Mountpoint) {
			at = m
		}
	}
	if at == nil {
		return fmt.Errorf("%s: no file system is mounted there", s.root)
	}
	below, err := filepath.Rel(at.Mountpoint, s.root)
	if err != nil {
		return fmt.Errorf("cannot determine where volumes are mounted: %w", err)
	}
	s.device, s.within = fmt.Sprint(at.Major, ":", at.Minor), filepath.Join(at.Root, below)
	return nil
}

// openStore creates missing directories, removes entries that were unfinished when the machine
// stopped, and reads the volumes.
func openStore(root string, q quotas) (*store, error) {
	s := &store{root: root, quotas: q, all: map[string]volume{}, reading: map[string]int{}, next: firstProject}
	s.mounts = func() ([]*mountinfo.Info, error) { return mountinfo.GetMounts(nil) }
	s.left = func() (int64, int64, error) {
		var f unix.Statfs_t
		err := unix.Statfs(root, &f)
		return int64(f.Bavail) * f.Bsize, int64(f.Blocks) * f.Bsize, err
	}
	for _, name := range []string{"", making, volumes, removing} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o700); err != nil {
			return nil, fmt.Errorf("cannot create the directory of volumes: %w", err)
		}
	}
	if err := q.Enforce(root); err != nil {
		return nil, err
	}
	if err := s.locate(); err != nil {
		return nil, err
	}
	unfinished, err := os.ReadDir(filepath.Join(root, making))
	if err != nil {
		return nil, err
	}
	for _, e := range unfinished {
		dir := filepath.Join(root, making, e.Name())
		if os.Remove(dir) == nil {
			continue // it was empty
		}
		// it may be large, so it is removed in the background
		err := os.Rename(dir, filepath.Join(root, removing, e.Name()))
		if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
			err = os.RemoveAll(dir)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot remove an unfinished volume: %w", err)
		}
	}
	for _, place := range []string{volumes, removing} {
		if err := s.read(place); err != nil {
			return nil, err
		}
	}
	if err := s.renumber(); err != nil {
		return nil, err
	}
	return s, s.forget()
}

// isVolumes reports whether a project number is in the range of volumes.
func isVolumes(project uint32) bool { return project >= firstProject && project < lastProject }

// renumber assigns new projects to volumes without a project of their own or with a shared project.
// A pod that runs as root without a user namespace owns its volume's directory and may have set any
// project: that of another volume, so that both quotas would change together, or 0, the project of
// all other files on DATA. The size of the volume is set again at its next use (ensure).
func (s *store) renumber() error {
	owners := map[uint32]int{}
	for _, v := range s.all {
		owners[v.project]++
	}
	for _, v := range s.all {
		if isVolumes(v.project) {
			s.next = max(s.next, v.project+1)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		v := s.all[name]
		if isVolumes(v.project) && owners[v.project] == 1 {
			continue
		}
		place := volumes
		if v.retired {
			place = removing
		}
		v.project, v.size = s.next, 0
		s.next++
		if err := errors.Join(s.quotas.SetLimit(s.root, v.project, nothing), s.quotas.Assign(filepath.Join(s.root, place, name), v.project)); err != nil {
			return err
		}
		s.all[name] = v
	}
	return nil
}

// read reads the volumes of a directory.
func (s *store) read(place string) error {
	entries, err := os.ReadDir(filepath.Join(s.root, place))
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(s.root, place, e.Name())
		project, err := s.quotas.Of(dir)
		if err != nil {
			return err
		}
		limit, _, err := s.quotas.Get(s.root, project)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		s.all[e.Name()] = volume{project: project, size: int64(limit.Bytes), retired: place == removing}
	}
	return nil
}

// sizes returns the quotas of all volumes, including volumes in removal.
func (s *store) sizes() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sizes := map[string]int64{}
	for name, v := range s.all {
		sizes[name] = v.size
	}
	return sizes
}

// show calls do to mount a volume's directory, and creates the directory if necessary: the quota is
// effective and on the disk before the first write. No copy and no removal can begin between the
// check and the mount. A volume with a source is created by a copy and not here.
func (s *store) show(name string, size int64, from string, do func(dir string) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err := s.ensure(name, size, from)
	if err != nil {
		return err
	}
	return do(dir)
}

// ensure returns a volume's directory and creates it if necessary, for show.
func (s *store) ensure(name string, size int64, from string) (dir string, err error) {
	dir = filepath.Join(s.root, volumes, name)
	v, there := s.all[name]
	switch {
	case there && v.retired:
		return "", fmt.Errorf("volume %s is being destroyed", name)
	case isSnapshot(name):
		return "", fmt.Errorf("%s is a snapshot: it cannot be mounted; create a volume from it by a claim with a dataSource", name)
	case there && v.making:
		return "", fmt.Errorf("volume %s is being filled from %s", name, from)
	case there && s.reading[name] > 0:
		return "", fmt.Errorf("volume %s is being copied: it can be used afterwards", name)
	case there && v.size == 0: // see renumber
		if err := s.limit(v.project, size); err != nil {
			return "", err
		}
		v.size = size
		s.all[name] = v
		return dir, nil
	case there:
		return dir, nil
	case !volumeName.MatchString(name):
		return "", fmt.Errorf("%q is not a volume of this driver: its name must be pvc- and a claim's UID", name)
	case size < 1:
		return "", fmt.Errorf("volume %s: invalid size of %d bytes", name, size)
	}
	if gone, err := s.gone(); err != nil {
		return "", err
	} else if strings.Contains(gone, name+"\n") {
		return "", fmt.Errorf("volume %s: its data are lost: they were destroyed with an earlier claim; delete its claim to get a new volume", name)
	}
	if from != "" {
		return "", fmt.Errorf("volume %s is not filled from %s yet: see the events of its claim", name, from)
	}
	v = volume{project: s.next, size: size}
	s.next++
	unfinished := filepath.Join(s.root, making, name)
	if err := os.Mkdir(unfinished, 0o700); err != nil {
		return "", fmt.Errorf("volume %s: cannot be made: %w", name, err)
	}
	err = errors.Join(
		s.limit(v.project, size),
		s.quotas.Assign(unfinished, v.project),
		// like an emptyDir: pods run as many users, and the store's root is closed to others
		os.Chmod(unfinished, 0o777),
	)
	if err == nil {
		err = safefile.SyncDir(unfinished)
	}
	if err == nil {
		err = os.Rename(unfinished, dir)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("volume %s: cannot be made: %w", name, err), os.RemoveAll(unfinished))
	}
	s.all[name] = v
	return dir, safefile.SyncDir(filepath.Join(s.root, volumes))
}

// limit sets the quota of a project.
func (s *store) limit(project uint32, size int64) error {
	if !isVolumes(project) {
		return fmt.Errorf("project %d does not belong to a volume", project)
	}
	return s.quotas.SetLimit(s.root, project, projectquota.Limit{Bytes: uint64(size), Inodes: max(uint64(size)/inodeShare, minInodes)})
}

// grow raises a volume's quota and waits until it is on the disk, because the kubelet requests it
// only once. The quota is never lowered.
func (s *store) grow(name string, size int64) error {
	if grown, err := s.raise(name, size); grown || err != nil {
		return err
	}
	// outside the lock: it writes all of DATA
	if err := persistAll(s.root); err != nil {
		return fmt.Errorf("volume %s: cannot write its new quota to the disk: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, there := s.all[name]; there {
		v.size = max(v.size, size)
		s.all[name] = v
	}
	return nil
}

// has reports whether a volume is in the store.
func (s *store) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.all[name]
	return there
}

// raise sets a volume's quota, and reports whether it was already as high and on the disk.
func (s *store) raise(name string, size int64) (grown bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, there := s.all[name]
	if !there || v.retired || v.making {
		return false, fmt.Errorf("volume %s is not on this node or not complete yet: it cannot grow", name)
	}
	if size <= v.size {
		return true, nil
	}
	if size <= v.requested {
		return false, nil
	}
	if err := s.limit(v.project, size); err != nil {
		return false, err
	}
	v.requested = size
	s.all[name] = v
	return false, nil
}

// retire takes a volume out of use permanently, and reports whether it has data left on the disk,
// which clear removes. If a part of it is mounted, it stays, and retire returns an error.
func (s *store) retire(name string) (left bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, there := s.all[name]
	switch {
	case !there:
		return false, nil
	case v.retired:
		return true, nil
	case v.making:
		return true, fmt.Errorf("%s: cannot be destroyed: it is still being created", name)
	case s.reading[name] > 0:
		return true, fmt.Errorf("%s: cannot be destroyed: it is being copied", name)
	}
	places, err := s.mountedAt(name)
	if err != nil {
		return true, err
	}
	if len(places) > 0 {
		return true, fmt.Errorf("volume %s: cannot be destroyed: it is still mounted at %s", name, places[0])
	}
	err = s.remember(name)
	if err == nil {
		err = os.Rename(filepath.Join(s.root, volumes, name), filepath.Join(s.root, removing, name))
	}
	if err != nil {
		return true, fmt.Errorf("volume %s: cannot be destroyed: %w", name, err)
	}
	v.retired = true
	s.all[name] = v
	return true, safefile.SyncDir(filepath.Join(s.root, removing))
}

// clear removes the data of a retired volume. It may take long and blocks no other operation.
func (s *store) clear(ctx context.Context, name string) error {
	s.mu.Lock()
	v, there := s.all[name]
	s.mu.Unlock()
	if !there || !v.retired {
		return nil
	}
	top := filepath.Join(s.root, removing, name)
	own := func(dir string) error { return s.quotas.Assign(dir, v.project) }
	// The pod may have changed the project of the directory itself, and the kernel moves no files
	// between projects.
	if err := own(top); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("volume %s: cannot be destroyed: %w", name, err)
	}
	if err := removeTree(ctx, top, own); err != nil {
		return fmt.Errorf("volume %s: cannot be destroyed: %w", name, err)
	}
	if err := s.quotas.SetLimit(s.root, v.project, nothing); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
	return nil
}

// remember records a destroyed volume and waits until the record is on the disk.
func (s *store) remember(name string) error {
	f, err := os.OpenFile(filepath.Join(s.root, destroyed), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(name + "\n")
	return errors.Join(err, f.Sync(), f.Close())
}

// gone returns the names of destroyed volumes.
func (s *store) gone() (string, error) {
	names, err := os.ReadFile(filepath.Join(s.root, destroyed))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("cannot read the list of destroyed volumes: %w", err)
	}
	return string(names), nil
}

// forget removes the oldest half of the destroyed names if the list is too long.
func (s *store) forget() error {
	names, err := s.gone()
	if err != nil || len(names) <= maxDestroyed {
		return err
	}
	_, kept, _ := strings.Cut(names[len(names)-maxDestroyed/2:], "\n")
	return renameio.WriteFile(filepath.Join(s.root, destroyed), []byte(kept), 0o600)
}

// retired returns the volumes with data left to remove.
func (s *store) retired() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	going := maps.Clone(s.all)
	maps.DeleteFunc(going, func(_ string, v volume) bool { return !v.retired })
	return slices.Sorted(maps.Keys(going))
}

// persistAll waits until the whole file system of a directory is on the disk: quotas are not part
// of any directory.
func persistAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// filesystem returns the ID of a directory's file system, and its capacity for files: root has the
// last percent (machined/disk). statfs(2) reports that share too, but a different share when the
// disk is almost full.
func filesystem(dir string) (id string, size int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", 0, fmt.Errorf("%s: cannot read the state of the file system: %w", dir, err)
	}
	return fmt.Sprintf("%08x%08x", uint32(s.Fsid.Val[0]), uint32(s.Fsid.Val[1])), int64(s.Blocks-s.Blocks/100) * s.Bsize, nil
}

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

// These are the directories below the root of the store. A volume is created in making, used in
// volumes, and removed in removing. It moves between these directories by rename(2), so a volume in
// the directory volumes is always complete.
const (
	making   = "making"
	volumes  = "volumes"
	removing = "removing"
)

// destroyed is a file with the names of destroyed volumes, one per line. A restore of the etcd data
// can restore the object of a destroyed volume. The store then refuses to create the volume,
// because an empty directory would hide that the data are lost. maxDestroyed is the largest size of
// the file in bytes.
const (
	destroyed    = "destroyed"
	maxDestroyed = 1 << 20
)

// firstProject is the first project number of volumes. It is far from the numbers of other
// programs: the kubelet's own project numbers begin at 2²⁰. lastProject is the end of the range,
// which has 2³⁰ numbers.
const firstProject, lastProject = 1 << 24, 1<<24 + 1<<30

// The value nothing is the limit for the project of a removed volume. A process may still have a
// file of the volume open, and must not write more to it.
var nothing = projectquota.Limit{Bytes: 1 << 10, Inodes: 1}

// inodeShare is the number of bytes of a volume for each inode. DATA has the same ratio
// (pkg/disk/mkfs). minInodes is the smallest number of inodes of a volume.
const (
	inodeShare = 16 << 10
	minInodes  = 256
)

// quotas are the quota operations of the kernel that the store uses. Tests have a fake.
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

// projectAttr is the extended attribute that stores the project number of a volume's directory, in
// decimal. A pod that owns the directory can change its project (FS_IOC_FSSETXATTR), for example to
// the project of another tenant, and use the space of that tenant. The pod cannot write the
// attribute, because trusted attributes need CAP_SYS_ADMIN (xattr(7)).
const projectAttr = "trusted.orlop.project"

// Assign assigns a directory to a project and stores the project in projectAttr.
func (kernelQuotas) Assign(dir string, id uint32) error {
	if err := unix.Lsetxattr(dir, projectAttr, []byte(strconv.FormatUint(uint64(id), 10)), 0); err != nil {
		return fmt.Errorf("%s: cannot record its project: %w", dir, err)
	}
	return projectquota.Assign(dir, id)
}

// Of returns the project of a directory that projectAttr stores. If the directory has another
// project, Of assigns it to the stored project. Without the attribute, Of returns the present
// project.
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
	size      int64 // the quota on the disk in bytes; 0: ensure sets the quota at the next use
	requested int64 // a larger quota in bytes that may not be on the disk yet
	retired   bool  // it is in the directory removing
	making    bool  // it is an incomplete copy
}

// store is the directory of all volumes and snapshots of a pool. It is safe for concurrent use.
type store struct {
	root    string
	device  string // major:minor of the file system of root
	within  string // path of root in that file system
	quotas  quotas
	mounts  func() ([]*mountinfo.Info, error)
	left    func() (free, size int64, err error) // the free bytes and the size of the file system
	mu      sync.Mutex
	all     map[string]volume
	reading map[string]int // number of copies in progress, by source
	next    uint32         // next project number
}

// locate sets device and within, which mountedAt compares with the mounts of the machine.
func (s *store) locate() error {
	above, err := mountinfo.GetMounts(mountinfo.ParentsFilter(s.root))
	if err != nil {
		return fmt.Errorf("cannot determine where volumes are mounted: %w", err)
	}
	var at *mountinfo.Info
	for _, m := range above {
		// A later mount at the same mount point hides an earlier one.
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

// openStore returns the store with this root. It creates missing directories, removes the volumes
// that were incomplete when the machine stopped, and reads all others. It fails with
// projectquota.ErrUnsupported on a file system without project quotas.
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
		// The directory may be large, so it moves to removing, and the node removes it in the
		// background.
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

// isVolumes reports whether a project number is in the range for volumes.
func isVolumes(project uint32) bool { return project >= firstProject && project < lastProject }

// renumber assigns a new project to each volume that has a project outside the range for volumes,
// or the same project as another volume. A pod that runs as root without a user namespace can have
// set such a project for the directory of its volume. For example, it can be the project of another
// volume, or 0, the project of all other files on DATA. ensure sets the quota of the new project at
// the next use of the volume.
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

// read adds the volumes in a directory below the root to the store.
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

// sizes returns the quotas of all volumes in bytes, by name. It includes volumes in removal.
func (s *store) sizes() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sizes := map[string]int64{}
	for name, v := range s.all {
		sizes[name] = v.size
	}
	return sizes
}

// show calls the function do with the directory of a volume; do mounts the volume. show first
// creates the directory if it does not exist. The quota is then effective, and on the disk, before
// the first write. show holds the lock while do runs, so no copy and no removal can begin before
// the mount. If the volume has a source (from is not empty), a copy creates the volume, and show
// fails until the copy is complete.
func (s *store) show(name string, size int64, from string, do func(dir string) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err := s.ensure(name, size, from)
	if err != nil {
		return err
	}
	return do(dir)
}

// ensure returns the directory of a volume, and creates it if it does not exist. ensure fails if
// the volume cannot be used now. The caller holds the lock.
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
	case there && v.size == 0: // renumber has assigned a new project without a quota
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
		// The mode is that of an emptyDir, because pods run as any user. The root of the store
		// keeps other users out.
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

// limit sets the quota of a project, with inodes in proportion. It fails if the project is not in
// the range for volumes.
func (s *store) limit(project uint32, size int64) error {
	if !isVolumes(project) {
		return fmt.Errorf("project %d does not belong to a volume", project)
	}
	return s.quotas.SetLimit(s.root, project, projectquota.Limit{Bytes: uint64(size), Inodes: max(uint64(size)/inodeShare, minInodes)})
}

// grow raises the quota of a volume to size bytes and waits until the quota is on the disk, because
// the kubelet requests a growth only once. If the quota is higher already, grow does nothing.
func (s *store) grow(name string, size int64) error {
	if grown, err := s.raise(name, size); grown || err != nil {
		return err
	}
	// This runs outside the lock, because it writes all of DATA and may take long.
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

// has reports whether a volume or snapshot is in the store.
func (s *store) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.all[name]
	return there
}

// raise sets the quota of a volume. The result grown is true if the quota on the disk was already
// at least size. There is then nothing to write to the disk.
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

// retire takes a volume out of use permanently. The result left is true if the data are still on
// the disk. The method clear removes them. retire fails if the volume is incomplete, mounted, or
// the source of a copy in progress.
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

// clear removes the data of a retired volume. It may take long and does not hold the lock
// meanwhile. It does nothing if the volume is not retired.
func (s *store) clear(ctx context.Context, name string) error {
	s.mu.Lock()
	v, there := s.all[name]
	s.mu.Unlock()
	if !there || !v.retired {
		return nil
	}
	top := filepath.Join(s.root, removing, name)
	own := func(dir string) error { return s.quotas.Assign(dir, v.project) }
	// The pod may have changed the project of the top directory. Set it again, because the kernel
	// rejects moves between directories of different projects.
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

// remember appends a name to the file of destroyed volumes, and waits until the file is on the
// disk.
func (s *store) remember(name string) error {
	f, err := os.OpenFile(filepath.Join(s.root, destroyed), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(name + "\n")
	return errors.Join(err, f.Sync(), f.Close())
}

// The method gone returns the content of the file of destroyed volumes, one name per line.
func (s *store) gone() (string, error) {
	names, err := os.ReadFile(filepath.Join(s.root, destroyed))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("cannot read the list of destroyed volumes: %w", err)
	}
	return string(names), nil
}

// forget removes the oldest names from the file of destroyed volumes if the file is larger than
// maxDestroyed. The newest names stay, in at most half of maxDestroyed bytes.
func (s *store) forget() error {
	names, err := s.gone()
	if err != nil || len(names) <= maxDestroyed {
		return err
	}
	_, kept, _ := strings.Cut(names[len(names)-maxDestroyed/2:], "\n")
	return renameio.WriteFile(filepath.Join(s.root, destroyed), []byte(kept), 0o600)
}

// The method retired returns the sorted names of the volumes in removal.
func (s *store) retired() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	going := maps.Clone(s.all)
	maps.DeleteFunc(going, func(_ string, v volume) bool { return !v.retired })
	return slices.Sorted(maps.Keys(going))
}

// persistAll waits until all changes of the file system that contains dir are on the disk. It
// writes the whole file system, because quotas belong to no directory.
func persistAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// filesystem returns the ID of the file system that contains dir, and its capacity for files in
// bytes. The capacity is without the last percent, which is reserved for root (machined/disk).
// statfs(2) also reports a reserved share, but that number changes when the disk is almost full.
func filesystem(dir string) (id string, size int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", 0, fmt.Errorf("%s: cannot read the state of the file system: %w", dir, err)
	}
	return fmt.Sprintf("%08x%08x", uint32(s.Fsid.Val[0]), uint32(s.Fsid.Val[1])), int64(s.Blocks-s.Blocks/100) * s.Bsize, nil
}

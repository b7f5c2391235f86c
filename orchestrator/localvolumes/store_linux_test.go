package localvolumes

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/orchestrator/localvolumes/projectquota"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// memory is a fake of the kernel's quotas. A directory retains its project when it is moved, as in
// the kernel.
type memory struct {
	projects map[string]uint32 // by base name of the directory
	limits   map[uint32]projectquota.Limit
	used     projectquota.Usage // usage of every project
	mu       sync.Mutex
	err      error // error of every call that changes state
}

func newMemory() *memory {
	return &memory{projects: map[string]uint32{}, limits: map[uint32]projectquota.Limit{}}
}

func (m *memory) Enforce(string) error { return m.err }
func (m *memory) Assign(dir string, id uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.projects[filepath.Base(dir)] = id
	}
	return m.err
}
func (m *memory) Of(dir string) (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.projects[filepath.Base(dir)], nil
}
func (m *memory) SetLimit(_ string, id uint32, limit projectquota.Limit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.limits[id] = limit
	}
	return m.err
}
func (m *memory) Get(_ string, id uint32) (projectquota.Limit, projectquota.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limits[id], m.used, nil
}

func open(t *testing.T, root string, q quotas) *store {
	t.Helper()
	s, err := openStore(root, q)
	if err != nil {
		t.Fatal(err)
	}
	if s.device == "" || !filepath.IsAbs(s.within) || filepath.Base(s.within) != filepath.Base(root) {
		t.Errorf("openStore found the store at the path %q of the file system %q", s.within, s.device)
	}
	s.device, s.within = "0:0", "/lib/local-volumes"
	s.mounts = func() ([]*mountinfo.Info, error) { return nil, nil }
	s.left = roomy
	return s
}

// TestStore creates volumes and grows a volume. Then it opens the store again after a simulated
// power cut that leaves an unfinished volume and a volume that is being removed.
func TestStore(t *testing.T) {
	root, kernel := filepath.Join(t.TempDir(), "local-volumes"), newMemory()
	s := open(t, root, kernel)
	dir, err := s.ensure(named(1), 64*mib, "")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|0o777 {
		t.Errorf("the directory of a volume: %v, %v", info, err)
	}
	if again, err := s.ensure(named(1), 128*mib, ""); err != nil || again != dir {
		t.Errorf("a second ensure: %s, %v", again, err)
	}
	if _, err := s.ensure(named(2), mib, ""); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{mib, 96 * mib, 32 * mib} {
		if err := s.grow(named(1), size); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int64{named(1): 96 * mib, named(2): mib}
	if got := s.sizes(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	first, second := s.all[named(1)].project, s.all[named(2)].project
	if first == second || kernel.limits[first] != (projectquota.Limit{Bytes: 96 * mib, Inodes: 96 * 64}) || kernel.limits[second].Inodes != minInodes {
		t.Errorf("limits %+v", kernel.limits)
	}
	for _, name := range []string{"../etc", "pvc-1", "", named(1) + "/x"} {
		if _, err := s.ensure(name, mib, ""); err == nil {
			t.Errorf("%q was created", name)
		}
	}

	// After the power cut, volume 3 is unfinished, and volume 2 is being removed.
	if err := errors.Join(os.Mkdir(filepath.Join(root, making, named(3)), 0o700), os.Rename(filepath.Join(root, volumes, named(2)), filepath.Join(root, removing, named(2)))); err != nil {
		t.Fatal(err)
	}
	s = open(t, root, kernel)
	if got := s.sizes(); !maps.Equal(got, want) {
		t.Errorf("after a power cut: %v, want %v", got, want)
	}
	if left, err := os.ReadDir(filepath.Join(root, making)); err != nil || len(left) > 0 {
		t.Errorf("the unfinished volume still exists: %v, %v", left, err)
	}
	if got := s.retired(); !slices.Equal(got, []string{named(2)}) {
		t.Errorf("volumes to be removed: %v", got)
	}
	if _, err := s.ensure(named(2), mib, ""); err == nil {
		t.Error("a volume that is being removed was used")
	}
	if err := s.clear(t.Context(), named(2)); err != nil {
		t.Error(err)
	}
	if _, err := s.ensure(named(4), mib, ""); err != nil || s.all[named(4)].project <= second {
		t.Errorf("a new volume has project %d, %v", s.all[named(4)].project, err)
	}
}

// TestRemove checks that a volume cannot be destroyed while it or a directory in it is mounted.
// Mounts of other directories with similar paths have no effect. It also checks that a destroyed
// volume is not created again.
func TestRemove(t *testing.T) {
	root, kernel := filepath.Join(t.TempDir(), "local-volumes"), newMemory()
	s := open(t, root, kernel)
	dir, err := s.ensure(named(1), mib, "")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "/below"} {
		s.mounts = func() ([]*mountinfo.Info, error) {
			return []*mountinfo.Info{{Root: "/lib/local-volumes/volumes/" + named(1) + suffix, Mountpoint: "/pod"}}, nil
		}
		if _, err := s.retire(named(1)); err == nil || !strings.Contains(err.Error(), "still mounted at /pod") {
			t.Errorf("retire of a mounted volume: %v", err)
		}
		if err := s.clear(t.Context(), named(1)); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); err != nil {
			t.Fatalf("a volume in use was removed: %v", err)
		}
	}
	s.mounts = func() ([]*mountinfo.Info, error) {
		return []*mountinfo.Info{{Root: "/lib/local-volumes/volumes/" + named(1) + "0", Mountpoint: "/pod"}, {Root: "/lib/local-volumes", Mountpoint: "/x"},
			// A tenant can create directories with the same path in its own volume, or on another
			// file system.
			{Root: "/lib/local-volumes/volumes/" + named(2) + "/lib/local-volumes/volumes/" + named(1), Mountpoint: "/pod"},
			{Root: "/lib/local-volumes/volumes/" + named(1), Mountpoint: "/pod", Minor: 7}}, nil
	}
	for range 2 {
		if left, err := s.retire(named(1)); !left || err != nil {
			t.Fatal(left, err)
		}
	}
	if err := s.clear(t.Context(), named(1)); err != nil {
		t.Fatal(err)
	}
	if left, err := s.retire(named(1)); left || err != nil {
		t.Error(left, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || len(s.sizes()) > 0 {
		t.Errorf("the volume still exists: %v, %v", err, s.sizes())
	}
	// After a restore of the etcd data, the object of the volume exists again.
	for range 2 {
		if _, err := s.ensure(named(1), mib, ""); err == nil || !strings.Contains(err.Error(), "its data are lost") {
			t.Errorf("an empty volume in place of the destroyed volume: %v", err)
		}
		s = open(t, root, kernel)
	}
	if _, err := s.ensure(named(2), mib, ""); err != nil {
		t.Error(err)
	}
}

// TestForget checks that openStore shortens a list of destroyed volumes that is too long.
func TestForget(t *testing.T) {
	root := filepath.Join(t.TempDir(), "local-volumes")
	s := open(t, root, newMemory())
	all := strings.Repeat(named(1)+"\n", maxDestroyed/len(named(1))) + named(2) + "\n"
	if err := os.WriteFile(filepath.Join(root, destroyed), []byte(all), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, root, newMemory())
	if gone, err := s.gone(); err != nil || len(gone) > maxDestroyed/2 || !strings.HasPrefix(gone, named(1)+"\n") || !strings.HasSuffix(gone, "\n"+named(2)+"\n") {
		t.Errorf("the list has %d bytes, %v", len(gone), err)
	}
}

// TestMakingFails checks that a volume is not created if its quota cannot be set, and that the next
// attempt succeeds when the quota can be set.
func TestMakingFails(t *testing.T) {
	root, kernel := filepath.Join(t.TempDir(), "local-volumes"), newMemory()
	s := open(t, root, kernel)
	kernel.err = errors.New("no")
	if _, err := s.ensure(named(1), mib, ""); err == nil {
		t.Error("the volume was created without a quota")
	}
	kernel.err = nil
	if _, err := s.ensure(named(1), mib, ""); err != nil {
		t.Error(err)
	}
}

// TestUnsupported checks a node on a file system without quotas. The node runs, but its report has
// a problem, and it rejects each volume.
func TestUnsupported(t *testing.T) {
	n, err := newNode(nodespec.Spec{Node: nodespec.Node{Name: "a"}}, t.TempDir(), &memory{err: projectquota.ErrUnsupported})
	if err != nil {
		t.Fatal(err)
	}
	report, err := afterRemoval(t, n, named(2), named(1))
	if err != nil || report.Problem == "" || !slices.Equal(report.Removed, []string{named(1), named(2)}) {
		t.Errorf("%+v, %v", report, err)
	}
	d := &driver{find: nodes{n}.find}
	if _, err := d.NodePublishVolume(t.Context(), request(named(1), "f", "1048576", t.TempDir())); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a volume without quotas: %v", err)
	}
}

// request returns the request by which the kubelet mounts a volume.
func request(name, filesystem, size, target string) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: name, TargetPath: target, VolumeContext: map[string]string{attributeFilesystem: filesystem, attributeSize: size},
		VolumeCapability: &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}},
	}
}

// TestPublish checks that a volume is mounted only once, even if the kubelet repeats the request. A
// volume that was created on another file system, or has an unknown mount option, is not mounted.
func TestPublish(t *testing.T) {
	var bound []mount.Flags
	s := open(t, filepath.Join(t.TempDir(), "local-volumes"), newMemory())
	d := &driver{
		node: "a", changed: func() {},
		find: func(string) opened { return opened{s, "f1", ""} }, stores: func() []*store { return []*store{s} },
		bind:    func(_, _ string, flags mount.Flags) error { bound = append(bound, flags); return nil },
		mounted: func(string) (bool, error) { return len(bound) > 0, nil },
		unmount: func(string) error { return nil },
	}
	target := filepath.Join(t.TempDir(), "mount")
	if _, err := d.NodePublishVolume(t.Context(), request(named(1), "f0", "1048576", target)); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "its data are lost") {
		t.Errorf("a volume of a file system that was replaced: %v", err)
	}
	odd := request(named(1), "f1", "1048576", target)
	odd.GetVolumeCapability().GetMount().MountFlags = []string{"noexec", "discard"}
	if _, err := d.NodePublishVolume(t.Context(), odd); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown mount option: %v", err)
	}
	if len(s.sizes()) > 0 {
		t.Error("a rejected volume was created")
	}
	right := request(named(1), "f1", "1048576", target)
	right.Readonly = true
	for range 2 {
		if _, err := d.NodePublishVolume(t.Context(), right); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(bound, []mount.Flags{mount.NoSuid | mount.NoDev | mount.NoAtime | mount.ReadOnly}) {
		t.Errorf("mounted %v", bound)
	}
	if _, err := d.NodeExpandVolume(context.Background(), &csi.NodeExpandVolumeRequest{VolumeId: named(1), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * mib}}); err != nil || s.sizes()[named(1)] != 2*mib {
		t.Errorf("%v, %v", s.sizes(), err)
	}
	for range 2 {
		if _, err := d.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: named(1), TargetPath: target}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignProjects simulates pods that have assigned the directories of their volumes to other
// projects. The store never changes the quota of another volume or of project 0, and a new volume
// gets an unused project.
func TestForeignProjects(t *testing.T) {
	root, kernel := filepath.Join(t.TempDir(), "local-volumes"), newMemory()
	s := open(t, root, kernel)
	for n := range 4 {
		if _, err := s.ensure(named(n+1), int64(n+1)*mib, ""); err != nil {
			t.Fatal(err)
		}
	}
	victim, others := s.all[named(1)].project, kernel.limits[0]
	limit := kernel.limits[victim]
	kernel.projects[named(2)], kernel.projects[named(3)], kernel.projects[named(4)] = victim, 0, 1<<32-2
	s = open(t, root, kernel)
	seen := map[uint32]bool{}
	for n := range 5 { // the fifth volume is new
		if _, err := s.ensure(named(n+1), int64(n+1)*mib, ""); err != nil {
			t.Fatal(err)
		}
		v := s.all[named(n+1)]
		if seen[v.project] || v.project < firstProject || v.project >= lastProject || kernel.projects[named(n+1)] != v.project {
			t.Errorf("volume %d: project %d of %v", n+1, v.project, kernel.projects)
		}
		if seen[v.project] = true; kernel.limits[v.project].Bytes != uint64(n+1)*mib {
			t.Errorf("volume %d: limit %+v", n+1, kernel.limits[v.project])
		}
	}
	for n := 1; n < 4; n++ {
		err := s.grow(named(n+1), 100*mib)
		if err == nil {
			_, err = s.retire(named(n + 1))
		}
		if err := errors.Join(err, s.clear(t.Context(), named(n+1))); err != nil {
			t.Error(err)
		}
	}
	if kernel.limits[victim] != limit || kernel.limits[0] != others {
		t.Errorf("the limit of the other volume is now %+v, and that of project 0 %+v", kernel.limits[victim], kernel.limits[0])
	}
}

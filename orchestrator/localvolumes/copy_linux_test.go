package localvolumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"

	"github.com/orlop-os/orlop/orchestrator/localvolumes/projectquota"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// copier returns a node with volume 1, which contains a file, the fake quotas of the node, and its
// root directory. The fake quotas report a usage of 12 KiB for every project.
func copier(t *testing.T) (*node, *memory, string) {
	t.Helper()
	root, kernel := filepath.Join(t.TempDir(), "local-volumes"), newMemory()
	kernel.used = projectquota.Usage{Bytes: 12 << 10, Inodes: 2}
	n, err := newNode(nodespec.Spec{Node: nodespec.Node{Name: "a"}}, root, kernel)
	if err != nil {
		t.Fatal(err)
	}
	n.store.device, n.store.within = "0:0", "/lib/local-volumes"
	n.store.mounts = func() ([]*mountinfo.Info, error) { return nil, nil }
	n.store.left = roomy
	t.Cleanup(n.copying.running.Wait)
	t.Cleanup(n.clearing.running.Wait)
	use(t, n.store, named(1), "", "before")
	return n, kernel, root
}

// roomy returns the free space and the size of a disk with much free space.
func roomy() (free, size int64, err error) { return gib, 2 * gib, nil }

// use mounts a volume by show and returns the content of its file. If text is not empty, use then
// writes text to the file. source is the source of the volume.
func use(t *testing.T, s *store, name, source, text string) string {
	t.Helper()
	var found []byte
	err := s.show(name, mib, source, func(dir string) (err error) {
		found, err = os.ReadFile(filepath.Join(dir, "file"))
		if err != nil && !os.IsNotExist(err) || text == "" {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "file"), []byte(text), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(found)
}

// afterCopies runs the copies of a node to their end and returns the report.
func afterCopies(t *testing.T, n *node, copies ...Copy) Report {
	t.Helper()
	// The first round removes an unfinished copy, the second makes the copy, and the third removes
	// the rest of a failed copy.
	for range 3 {
		if _, err := n.perform(t.Context(), nil, copies); err != nil {
			t.Fatal(err)
		}
		n.copying.running.Wait()
		n.clearing.running.Wait()
	}
	r, err := n.perform(t.Context(), nil, copies)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// afterRemoval runs the removal of the named volumes to its end and returns the report.
func afterRemoval(t *testing.T, n *node, names ...string) (Report, error) {
	t.Helper()
	if _, err := n.perform(t.Context(), names, nil); err != nil {
		t.Fatal(err)
	}
	n.clearing.running.Wait()
	return n.perform(t.Context(), names, nil)
}

// TestCopies takes a snapshot of a volume and changes the volume. Then it makes a volume from the
// snapshot, and a clone of the changed volume.
func TestCopies(t *testing.T) {
	n, kernel, root := copier(t)
	began := time.Now().Unix()
	take := Copy{snapped(1), named(1), 64 * mib}
	r := afterCopies(t, n, take)
	if r.Created[snapped(1)] < began-1 || r.Created[snapped(1)] > time.Now().Unix() || r.Volumes[snapped(1)] != 12<<10 || len(r.Waits) > 0 {
		t.Fatalf("%+v", r)
	}
	if got := kernel.limits[n.store.all[snapped(1)].project]; got != (projectquota.Limit{Bytes: 12 << 10, Inodes: 2}) {
		t.Errorf("the snapshot has the limit %+v", got)
	}
	if r, err := n.perform(t.Context(), nil, nil); err != nil || len(r.Created) > 0 || r.Volumes[snapped(1)] != 12<<10 {
		t.Errorf("without requests: %+v, %v", r, err)
	}
	if was := use(t, n.store, named(1), "", "after"); was != "before" {
		t.Errorf("the volume has %q", was)
	}
	if err := n.store.show(snapped(1), mib, "", func(string) error { return nil }); err == nil || !strings.Contains(err.Error(), "is a snapshot") {
		t.Errorf("a snapshot was mounted: %v", err)
	}

	fill, clone := Copy{named(2), snapped(1), 2 * mib}, Copy{named(3), named(1), mib}
	if err := n.store.show(named(2), mib, snapped(1), func(string) error { return nil }); err == nil || !strings.Contains(err.Error(), "is not filled") {
		t.Errorf("a volume was mounted before it was filled: %v", err)
	}
	afterCopies(t, n, fill, clone)
	r = afterCopies(t, n, fill, clone)
	if len(r.Created) != 2 || r.Volumes[named(2)] != 2*mib || r.Volumes[named(3)] != mib {
		t.Fatalf("after the copies: %+v", r)
	}
	if got := kernel.limits[n.store.all[named(2)].project]; got.Bytes != 2*mib {
		t.Errorf("the volume has the limit %+v", got)
	}
	if a, b := use(t, n.store, named(2), snapped(1), "else"), use(t, n.store, named(3), named(1), ""); a != "before" || b != "after" {
		t.Errorf("the volume from the snapshot has %q, the clone %q", a, b)
	}

	// After a restart, all copies exist.
	n.store = open(t, root, kernel)
	if r := afterCopies(t, n, take, fill, clone); len(r.Created) != 3 || len(r.Volumes) != 4 {
		t.Errorf("after a restart: %+v", r)
	}
	// A destroyed snapshot is not taken again, because it would have other data.
	if r, err := afterRemoval(t, n, snapped(1)); err != nil || !slices.Equal(r.Removed, []string{snapped(1)}) || len(r.Volumes) != 3 {
		t.Errorf("after the removal of the snapshot: %+v, %v", r, err)
	}
	if r := afterCopies(t, n, take); !strings.Contains(r.Waits[snapped(1)], "its data are lost") || len(r.Volumes) != 3 {
		t.Errorf("the second request for a destroyed snapshot: %+v", r)
	}
}

// TestCopyWaits checks that a mounted volume is not copied, and that the report names its pods.
// While a copy is in progress, its source cannot be mounted or destroyed.
func TestCopyWaits(t *testing.T) {
	n, _, _ := copier(t)
	const known, unknown = "0a1b2c3d-0000-4000-8000-000000000001", "0a1b2c3d-0000-4000-8000-000000000002"
	var mounts []*mountinfo.Info
	for _, at := range []string{"/var/lib/kubelet/pods/" + known + "/volumes/x/mount", "/var/lib/kubelet/pods/" + unknown + "/volumes/x/mount",
		"/var/lib/kubelet/pods/" + known + "/volume-subpaths/x/0", "/mnt"} {
		mounts = append(mounts, &mountinfo.Info{Root: "/lib/local-volumes/volumes/" + named(1), Mountpoint: at})
	}
	n.store.mounts = func() ([]*mountinfo.Info, error) { return mounts, nil }
	n.pods = func(context.Context) (map[string]string, error) {
		return map[string]string{known: "default/first"}, nil
	}
	take := Copy{snapped(1), named(1), mib}
	r := afterCopies(t, n, take, Copy{snapped(2), named(2), mib}, Copy{named(3), snapped(3), mib})
	for name, want := range map[string]string{
		snapped(1): "volume " + named(1) + " is used by a mount at /mnt and pod " + unknown + " and pod default/first: it is copied when it is no longer in use",
		snapped(2): "volume " + named(2) + " is not on this node: no pod has used it yet, or it was destroyed",
		named(3):   "snapshot " + snapped(3) + " is not on this node",
	} {
		if r.Waits[name] != want {
			t.Errorf("%s: %s", name, r.Waits[name])
		}
	}
	if len(r.Volumes) != 1 {
		t.Errorf("%+v", r)
	}

	mounts = nil
	j, err := n.store.reserve(take)
	if err != nil {
		t.Fatal(err)
	}
	none := func(string) error { t.Error("a volume was mounted"); return nil }
	retired := func(name string) error {
		_, err := n.store.retire(name)
		return err
	}
	for _, c := range []struct {
		want string
		err  error
	}{
		{"it is being copied", retired(named(1))},
		{"is being copied", n.store.show(named(1), mib, "", none)},
		{"is still being created", retired(snapped(1))},
		{"not complete yet", n.store.grow(snapped(1), 2*mib)},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want: %s", c.err, c.want)
		}
	}
	if _, err := n.store.reserve(Copy{named(4), snapped(1), mib}); err == nil || !strings.Contains(err.Error(), "not complete yet") {
		t.Errorf("a copy of an incomplete copy: %v", err)
	}
	size, err := n.store.work(t.Context(), j)
	if err := n.store.finish(j, size, err); err != nil {
		t.Fatal(err)
	}
	if was := use(t, n.store, named(1), "", ""); was != "before" {
		t.Errorf("%q", was)
	}
}

// TestCopyStops checks a copy that is not wanted any more, and a copy that a power cut interrupts.
// Both leave no data, and the copy can be repeated.
func TestCopyStops(t *testing.T) {
	n, kernel, root := copier(t)
	take := Copy{snapped(1), named(1), mib}
	j, err := n.store.reserve(take)
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	size, err := n.store.work(stopped, j)
	if err := n.store.finish(j, size, err); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if r, err := afterRemoval(t, n, snapped(1)); err != nil || len(r.Volumes) != 1 || len(r.Removed) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if j, err = n.store.reserve(take); err != nil {
		t.Fatal(err)
	}
	// as after a power cut
	if err := os.WriteFile(filepath.Join(j.to, "half"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.store = open(t, root, kernel)
	if r := afterCopies(t, n, take); len(r.Created) != 1 || len(r.Volumes) != 2 {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(root, volumes, snapped(1), "half")); !os.IsNotExist(err) {
		t.Errorf("data of the interrupted copy remain: %v", err)
	}

	// A copy that the controller does not request any more is stopped.
	n.copying.start(t.Context(), named(5), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, n.changed.Wake)
	if now, _ := n.copying.busy(named(6)); now != named(5) {
		t.Errorf("%q is copied", now)
	}
	if _, err := n.perform(t.Context(), nil, []Copy{take}); err != nil {
		t.Error(err)
	}
	n.copying.running.Wait()
	if now, why := n.copying.busy(named(5)); now != "" || why != "" {
		t.Errorf("%q is copied, %s", now, why)
	}
}

// TestCopyFails checks a copy that fails. The report contains the error, no data are left, and the
// copy is not retried before the end of its cooldown.
func TestCopyFails(t *testing.T) {
	n, kernel, _ := copier(t)
	kernel.err = errors.New("no quota today")
	take := Copy{snapped(1), named(1), mib}
	if _, err := n.perform(t.Context(), nil, []Copy{take}); err != nil {
		t.Fatal(err)
	}
	n.copying.running.Wait()
	kernel.err = nil
	r := afterCopies(t, n, take)
	if !strings.Contains(r.Waits[snapped(1)], "will be retried") || !strings.Contains(r.Waits[snapped(1)], "no quota today") || len(r.Volumes) != 1 {
		t.Errorf("%+v", r)
	}
	if _, err := n.perform(t.Context(), nil, nil); err != nil { // during the cooldown
		t.Fatal(err)
	}
	if r := afterCopies(t, n, take); r.Waits[snapped(1)] == "" {
		t.Errorf("the copy was retried during its cooldown: %+v", r)
	}
	n.copying.failed[snapped(1)] = setback{"no quota today", time.Now()} // end of the cooldown
	if r := afterCopies(t, n, take); len(r.Created) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestManyWait checks that the pods are listed once for all waiting copies, and not at all if no
// copy waits for pods. It also checks that the report has a limited size even if the lists of
// requests are too long.
func TestManyWait(t *testing.T) {
	n, _, _ := copier(t)
	asked := 0
	n.pods = func(context.Context) (map[string]string, error) { asked++; return nil, nil }
	if r := afterCopies(t, n, Copy{snapped(1), named(9), mib}); asked != 0 || r.Waits[snapped(1)] == "" {
		t.Errorf("the pods were listed %d times, %+v", asked, r)
	}
	var mounts []*mountinfo.Info
	for i := range 100 {
		mounts = append(mounts, &mountinfo.Info{Root: "/lib/local-volumes/volumes/" + named(1), Mountpoint: fmt.Sprintf("/<<<<<<<<<<<<<<<<<<<<<%d", i)})
	}
	n.store.mounts = func() ([]*mountinfo.Info, error) { return mounts, nil }
	var copies []Copy
	var obsolete []string
	for i := range 2500 {
		copies = append(copies, Copy{snapped(1000 + i), named(1), mib})
		obsolete = append(obsolete, named(5000+i))
	}
	r, err := n.perform(t.Context(), obsolete, copies)
	if err != nil || asked != 1 || len(r.Waits) != maxCopies || len(r.Removed) != maxObsolete {
		t.Errorf("the pods were listed %d times, %d copies wait, %d volumes are removed, %v", asked, len(r.Waits), len(r.Removed), err)
	}
	for _, why := range r.Waits {
		if !strings.HasPrefix(why, "volume "+named(1)+" is used by") || !strings.HasSuffix(why, ": it is copied when it is no longer in use") {
			t.Fatal(why)
		}
	}
	text, err := json.Marshal(r)
	if err != nil || len(text) > 50<<10 || !sameNode(Node{Report: r}, Node{Report: parseReport(string(text))}) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// TestCopying checks that the report names the copy in progress.
func TestCopying(t *testing.T) {
	n, _, _ := copier(t)
	n.copying.start(t.Context(), snapped(1), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, n.changed.Wake)
	if r, err := n.perform(t.Context(), nil, []Copy{{snapped(1), named(1), mib}, {snapped(2), named(1), mib}}); err != nil || r.Copying != snapped(1) ||
		r.Waits[snapped(1)] != "" || r.Waits[snapped(2)] != "its copy waits for another copy" {
		t.Errorf("%+v, %v", r, err)
	}
	n.copying.prune(func(string) bool { return false })
	n.copying.running.Wait()
	if r, err := n.perform(t.Context(), nil, nil); err != nil || r.Copying != "" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestCopyFits checks that a copy that would fill the disk waits for free space.
func TestCopyFits(t *testing.T) {
	n, _, _ := copier(t)
	take := Copy{snapped(1), named(1), mib}
	n.store.left = func() (int64, int64, error) { return 2*gib*evictionPercent/100 + 8<<10, 2 * gib, nil }
	r, err := n.perform(t.Context(), nil, []Copy{take})
	if err == nil || !strings.Contains(r.Waits[snapped(1)], "must stay free") || len(r.Volumes) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	n.store.left = roomy
	if r := afterCopies(t, n, take); len(r.Created) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestPublishFilled checks that the kubelet can mount a volume with a source only after the volume
// is filled. It also checks that an unmount triggers a pass, because a copy may wait for it.
func TestPublishFilled(t *testing.T) {
	n, _, _ := copier(t)
	d := &driver{node: "a", find: func(string) opened { return opened{n.store, "f1", ""} }, changed: n.changed.Wake,
		bind:    func(string, string, mount.Flags) error { return nil },
		mounted: func(string) (bool, error) { return false, nil }, unmount: func(string) error { return nil }}
	target := filepath.Join(t.TempDir(), "mount")
	ask := request(named(2), "f1", "1048576", target)
	ask.VolumeContext[attributeSource] = named(1)
	if _, err := d.NodePublishVolume(t.Context(), ask); err == nil || !strings.Contains(err.Error(), "is not filled from "+named(1)) {
		t.Errorf("%v", err)
	}
	afterCopies(t, n, Copy{named(2), named(1), mib})
	if _, err := d.NodePublishVolume(t.Context(), ask); err != nil {
		t.Error(err)
	}
	select {
	case <-n.changed:
	default:
	}
	if _, err := d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: named(2), TargetPath: target}); err != nil {
		t.Error(err)
	}
	select {
	case <-n.changed:
	default:
		t.Error("an unmount triggers no pass")
	}
}

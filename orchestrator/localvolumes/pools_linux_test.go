package localvolumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestMissingDisk checks a pool without its disk. The node rejects the volumes of the pool,
// and reports none of them as removed. When the disk returns, the pool works again. The pool on
// DATA is not affected.
func TestMissingDisk(t *testing.T) {
	dir, pool := t.TempDir(), filepath.Join(t.TempDir(), "fast/local-volumes")
	spec := nodespec.Spec{Node: nodespec.Node{Name: "a"}, LocalVolumes: nodespec.LocalVolumes{Pools: []nodespec.VolumePool{{Name: "fast", Dir: pool}}}}
	all, err := newNodes(spec, filepath.Join(dir, "local-volumes"), newMemory())
	if err != nil {
		t.Fatal(err)
	}
	if got := all.describe(); got != "0 volumes; no volumes of class orlop-local-fast: the disk of volume fast is missing" {
		t.Errorf("%q", got)
	}
	var bound []string
	d := &driver{node: "a", find: all.find, stores: all.stores, changed: func() {},
		bind:    func(dir, _ string, _ mount.Flags) error { bound = append(bound, dir); return nil },
		mounted: func(string) (bool, error) { return false, nil }}
	publish := func() error {
		ask := request(named(1), all.find("fast").filesystem, "1048576", filepath.Join(dir, "mount"))
		ask.VolumeContext[parameterPool] = "fast"
		_, err := d.NodePublishVolume(t.Context(), ask)
		return err
	}
	if err := publish(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("without the disk: %v", err)
	}
	if r, err := all[1].perform(t.Context(), []string{named(1)}, nil); err != nil || r.Problem == "" || len(r.Removed) > 0 {
		t.Errorf("without the disk, the report has removed volumes or no problem: %+v, %v", r, err)
	}
	if _, err := os.Stat(pool); !os.IsNotExist(err) {
		t.Errorf("the directory was made without the disk: %v", err)
	}
	if err := os.MkdirAll(pool, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := publish(); err != nil || len(bound) != 1 || !strings.HasPrefix(bound[0], pool) {
		t.Errorf("with the disk: %v, %q", err, bound)
	}
	if r, err := all[1].perform(t.Context(), nil, nil); err != nil || r.Problem != "" || len(r.Volumes) != 1 || r.Filesystem == "" {
		t.Errorf("%+v, %v", r, err)
	}
	if got := all.describe(); got != "1 volumes" {
		t.Errorf("%q", got)
	}
	unknown := request(named(2), "f", "1048576", filepath.Join(dir, "mount"))
	unknown.VolumeContext[parameterPool] = "slow"
	if _, err := d.NodePublishVolume(t.Context(), unknown); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an unknown pool: %v", err)
	}
}

// TestDamagedPool checks that an error of one disk affects only the pool on this disk.
func TestDamagedPool(t *testing.T) {
	dir := t.TempDir()
	pool := filepath.Join(dir, "fast")
	if err := os.WriteFile(pool, nil, 0o600); err != nil { // a file instead of a directory
		t.Fatal(err)
	}
	spec := nodespec.Spec{Node: nodespec.Node{Name: "a"}, LocalVolumes: nodespec.LocalVolumes{Pools: []nodespec.VolumePool{{Name: "fast", Dir: pool}}}}
	all, err := newNodes(spec, filepath.Join(dir, "local-volumes"), newMemory())
	if err != nil {
		t.Fatal(err)
	}
	if o := all.find("fast"); o.store != nil || o.problem == "" {
		t.Errorf("%+v", o)
	}
	if stores := all.stores(); len(stores) != 1 || stores[0] != all.find("").store {
		t.Errorf("%d stores", len(stores))
	}
	if got := all.describe(); !strings.HasPrefix(got, "0 volumes; no volumes of class orlop-local-fast: ") {
		t.Errorf("%q", got)
	}
	if r, err := all[1].perform(t.Context(), []string{named(1)}, nil); err == nil || r.Problem == "" || len(r.Removed) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestDisown checks the report of a pool after its document was removed. The report has a problem
// and retains the ID of the file system, so the controller does not consider the volumes lost.
// disown writes the report only once.
func TestDisown(t *testing.T) {
	all, err := newNodes(nodespec.Spec{Node: nodespec.Node{Name: "a"}}, filepath.Join(t.TempDir(), "local-volumes"), newMemory())
	if err != nil {
		t.Fatal(err)
	}
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{ReportAnnotation + ".fast": `{"filesystem":"f2","size":8}`}}}
	api := fake.NewClientset(own)
	for range 2 {
		if err := all.disown(t.Context(), api, own); err != nil {
			t.Fatal(err)
		}
		if own, err = api.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if r := parseReport(own.Annotations[ReportAnnotation+".fast"]); r.Filesystem != "f2" || r.Problem != "the document of volume fast was removed" {
		t.Errorf("%+v", r)
	}
	count := 0
	for _, a := range api.Actions() {
		if a.GetVerb() == "patch" {
			count++
		}
	}
	if count != 1 {
		t.Errorf("disown wrote %d times, want 1", count)
	}
}

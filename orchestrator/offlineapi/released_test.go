package offlineapi

import (
	"testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedRecord checks that this version reads the record of a released version, and writes it
// in the same format.
func TestReleasedRecord(t *testing.T) {
	r, err := Read(releasedtest.Copy(t, "."), nodespec.Spec{Cluster: "c1", Node: nodespec.Node{Name: "w1"}})
	if err != nil || len(r.Missing) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if o := r.Objects[pods.resource]; len(o) != 1 || o[0]["metadata"].(Object)["annotations"].(Object)[Annotation] != "true" {
		t.Errorf("pods of the released record: %v", o)
	}
	dir := t.TempDir()
	if err := writeRecord(dir, *r); err != nil {
		t.Fatal(err)
	}
	releasedtest.Compare(t, ".", dir)
}

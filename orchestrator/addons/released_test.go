package addons

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedRecord checks that this version reads the record of an add-on that a released version
// has written, and writes it in the same format.
func TestReleasedRecord(t *testing.T) {
	var m corev1.ConfigMap
	if err := json.Unmarshal(releasedtest.Read(t, "record.json"), &m); err != nil {
		t.Fatal(err)
	}
	r, s, err := decode(&m)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Inventory) != 2 || len(r.Orphaned) != 1 || r.RolledBack.Node != "m2" || r.Trial.Minutes != 7 {
		t.Errorf("the record is %+v", r)
	}
	// decode does not read these fields: they are for users.
	s.Objects, s.Healthy, s.Problems, s.Notes = 2, 1, []string{m.Data[fieldProblems]}, []string{m.Data[fieldNotes]}
	again, err := encode(m.Name, r, s)
	if err != nil {
		t.Fatal(err)
	}
	compareObject(t, "record.json", again)
}

// compareObject compares an object with a released object.
func compareObject(t *testing.T, name string, object any) {
	t.Helper()
	text, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	releasedtest.CompareFile(t, name, append(text, '\n'))
}

// TestReleasedManifests checks that this version reads and writes the stored manifests of a
// released version. The compression may differ between versions of Go, so the test compares the
// uncompressed texts.
func TestReleasedManifests(t *testing.T) {
	var s corev1.Secret
	if err := json.Unmarshal(releasedtest.Read(t, "before.json"), &s); err != nil {
		t.Fatal(err)
	}
	stored, err := unpack(&s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := stored.secret(s.Name)
	if err != nil {
		t.Fatal(err)
	}
	if now, was := uncompressed(t, again), uncompressed(t, &s); now != was || len(stored.Manifests) != 2 {
		t.Errorf("the present version wrote %s, the released one %s", now, was)
	}
	again.Data = s.Data
	compareObject(t, "before.json", again)
}

func uncompressed(t *testing.T, s *corev1.Secret) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(s.Data[storedField]))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

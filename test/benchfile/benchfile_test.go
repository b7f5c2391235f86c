package benchfile

import (
	"os"
	"path/filepath"
	"testing"
)

// TestBothPartsStay checks that WriteCluster and WriteOthers each preserve the part of the other.
func TestBothPartsStay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	type ours struct {
		Z int   `json:"z"`
		A []int `json:"a"`
	}
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return WriteCluster(file, map[string]int{"n": 1}) }, `{
  "cluster": {
    "n": 1
  }
}
`},
		{func() error { return WriteOthers(file, ours{Z: 2, A: []int{3}}) }, `{
  "z": 2,
  "a": [
    3
  ],
  "cluster": {
    "n": 1
  }
}
`},
		{func() error { return WriteCluster(file, map[string]int{"n": 4}) }, `{
  "z": 2,
  "a": [
    3
  ],
  "cluster": {
    "n": 4
  }
}
`},
		{func() error { return WriteOthers(file, map[string]int{"b": 5}) }, `{
  "b": 5,
  "cluster": {
    "n": 4
  }
}
`},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil || string(got) != step.want {
			t.Fatalf("got %s, want %s, %v", got, step.want, err)
		}
	}
	if got, err := Read(file, Cluster); err != nil || string(got) != "{\n    \"n\": 4\n  }" {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := Read(file, "none"); err != nil || got != nil {
		t.Errorf("Read of a missing field = %s, %v; want nil", got, err)
	}
}

// TestDamagedFile checks that a damaged file is not overwritten.
func TestDamagedFile(t *testing.T) {
	for _, text := range []string{"", "[1]", `{"a": 1`, `{"a" 1}`} {
		file := filepath.Join(t.TempDir(), "bench.json")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := WriteCluster(file, 1); err == nil {
			t.Errorf("WriteCluster replaces the damaged file %q", text)
		}
		if err := WriteOthers(file, map[string]int{}); err == nil {
			t.Errorf("WriteOthers replaces the damaged file %q", text)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("the damaged file %q has changed to %q, %v", text, got, err)
		}
	}
}

package targets

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
)

func number(v float64) *float64 { return &v }

// TestWrite checks the table for a met and a missed ratio, a target without a ratio, a target
// without a measured value, and a figure without a target.
func TestWrite(t *testing.T) {
	results := []Result{
		Target{Figure: "ratio.node_ready", What: "init → node Ready", Unit: "s", Ratio: true, AtMost: 0.5}.Result(
			Measured{Ours: number(12), Other: number(24), With: "baseline", Ratio: number(0.5), Pairs: []float64{0.48, 0.5, 0.52}}),
		Target{Figure: "against.ratio.upgrade", What: "upgrade", Unit: "s", Ratio: true, AtMost: 0.6}.Result(
			Measured{Ours: number(70), Other: number(100), With: "0.1.0", Ratio: number(0.7), Pairs: []float64{0.7}}),
		Target{Figure: "artifact_mib", What: "compressed image", Unit: "MiB", AtMost: 90}.Result(
			Measured{Ours: number(97.96), Other: number(98), With: "0.1.0", Ratio: number(0.9996)}),
		Target{Figure: "flood_ratio", What: "flood of strangers", AtMost: 2}.Result(Measured{Ours: number(2)}),
		Target{Figure: "against.ratio.api", What: "init → first answer", Unit: "s", Ratio: true, AtMost: 0.6}.Result(Measured{Ours: number(4)}),
		Target{Figure: "against.ratio.memory", What: "memory", Unit: "MiB", Ratio: true, Shown: true}.Result(
			Measured{Ours: number(400), Other: number(500), With: "0.1.0", Ratio: number(0.8), Pairs: []float64{0.8}}),
	}
	var out strings.Builder
	if err := Write(&out, "go run ./test/bench -pairs 3", results); err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, out.String(), "table.md")
}

func TestDivide(t *testing.T) {
	if got := Divide(number(3), number(6)); got == nil || *got != 0.5 {
		t.Errorf("Divide does not return 0.5 for 3 and 6, but %v", got)
	}
	for _, pair := range [][2]*float64{{nil, number(1)}, {number(1), nil}, {number(1), number(0)}} {
		if got := Divide(pair[0], pair[1]); got != nil {
			t.Errorf("Divide with a missing figure or the divisor 0 (%v) returns %v, want nil", pair, *got)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.values); got == nil || *got != c.want {
			t.Errorf("Median returns a wrong median of %v: %v", c.values, got)
		}
	}
	if Median(nil) != nil {
		t.Error("Median without values does not return nil")
	}
}

func TestInTurn(t *testing.T) {
	sides := []string{"ours", "former", "baseline"}
	for round, want := range map[int][]string{1: sides, 2: {"baseline", "former", "ours"}, 3: sides} {
		if got := InTurn(sides, round); !slices.Equal(got, want) {
			t.Errorf("round %d: %q, want %q", round, got, want)
		}
	}
	if sides[0] != "ours" {
		t.Error("InTurn changes the slice of its caller")
	}
}

func TestOpenFormer(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"disk.raw": "", "disk.raw.zst": "", "orlop.bundle": "", "next/orlop.bundle": "", "bin/orlopctl": "", "manifest.json": `{"release": {"version": "0.1.0"}}`,
	}
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		write(name, text)
	}
	for _, path := range []string{dir, filepath.Join(dir, "orlop.bundle")} {
		if f, err := OpenFormer(path); err != nil || f.Version != "0.1.0" || f.Image != dir || f.Bundle != filepath.Join(dir, "next", "orlop.bundle") {
			t.Errorf("OpenFormer for %s returns %+v, %v", path, f, err)
		}
	}
	for _, name := range []string{"disk.raw", "disk.raw.zst", "next/orlop.bundle", "bin/orlopctl", "manifest.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenFormer(dir); err == nil || !strings.Contains(err.Error(), filepath.Base(name)) || !strings.Contains(err.Error(), "make release-previous") {
			t.Errorf("OpenFormer without the file %s returns %v", name, err)
		}
		write(name, files[name])
	}
	for text, want := range map[string]string{"{": "manifest.json", "{}": "no version"} {
		write("manifest.json", text)
		if _, err := OpenFormer(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("OpenFormer with the manifest %s returns %v", text, err)
		}
	}
}

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/buildinfo"
)

// TestSystemTree checks the directories, links and small files of the root that programs of the
// system and of pods use.
func TestSystemTree(t *testing.T) {
	tree := Tree{}
	if err := addSystem(tree, buildinfo.Release{Name: "Orlop OS", Version: "1.0.0", Profile: "qemu"}); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, name := range tree.Names() {
		switch n := tree[name]; {
		case n.Dir:
			fmt.Fprintf(&text, "%s/\n", name)
		case n.Target != "":
			fmt.Fprintf(&text, "%s -> %s\n", name, n.Target)
		default:
			fmt.Fprintf(&text, "%s %o\n", name, n.Mode)
		}
	}
	golden.Assert(t, text.String(), "system.txt")
}

func TestUTC(t *testing.T) {
	zone, err := time.LoadLocationFromTZData("Local", utc())
	if err != nil {
		t.Fatal(err)
	}
	for _, year := range []int{1900, 1970, 2026, 2400} {
		if name, offset := time.Date(year, 7, 1, 0, 0, 0, 0, zone).Zone(); name != "UTC" || offset != 0 {
			t.Errorf("in the year %d, the zone is %s, %d s from UTC", year, name, offset)
		}
	}
}

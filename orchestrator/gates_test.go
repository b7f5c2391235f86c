package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// TestGates lists, in a golden file, upstream's features that are on by default and not final (GA).
// A new minor version of Kubernetes enables features without a change of our flags. After an
// update, read the release notes of each new line.
func TestGates(t *testing.T) {
	all := utilfeature.DefaultMutableFeatureGate.GetAll()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if gate := all[name]; gate.Default && gate.PreRelease != featuregate.GA {
			fmt.Fprintf(&b, "%s %s\n", name, gate.PreRelease)
		}
	}
	golden.Assert(t, b.String(), "gates.golden")
}

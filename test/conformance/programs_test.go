package main

import "testing"

// TestVersionFlags checks the variables that the linker sets in the suite.
func TestVersionFlags(t *testing.T) {
	const want = "-X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37" +
		" -X k8s.io/client-go/pkg/version.gitVersion=v1.37.2 -X k8s.io/client-go/pkg/version.gitMajor=1 -X k8s.io/client-go/pkg/version.gitMinor=37"
	if got := versionFlags("v1.37.2"); got != want {
		t.Errorf("flags:\n%s\nwant\n%s", got, want)
	}
}

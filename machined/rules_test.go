package main

import (
	"slices"
	"testing"
)

func TestTableNames(t *testing.T) {
	have := tableNames("table inet orlop-api\ntable ip kube-proxy\n\ntable ip6 kube-proxy\n")
	if want := []string{"inet orlop-api", "ip kube-proxy", "ip6 kube-proxy"}; !slices.Equal(have, want) {
		t.Errorf("%q, want %q", have, want)
	}
	if have := tableNames(""); have != nil {
		t.Errorf("of nothing: %q", have)
	}
}

package debug

import (
	"slices"
	"testing"
)

func TestRules(t *testing.T) {
	have := tableNames("table inet orlop-api\ntable ip kube-proxy\n\ntable ip6 kube-proxy\n")
	if want := []string{"inet orlop-api", "ip kube-proxy", "ip6 kube-proxy"}; !slices.Equal(have, want) {
		t.Errorf("%q, want %q", have, want)
	}
	if have := tableNames(""); have != nil {
		t.Errorf("the tables of an empty text: %q", have)
	}
	if have, want := spaced("table ip x {\n\tchain y { \n\t\taccept\n\t}\n}"), "table ip x {\n  chain y {\n    accept\n  }\n}\n"; have != want {
		t.Errorf("%q, want %q", have, want)
	}
}

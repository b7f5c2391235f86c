package disruption

import (
	"strings"
	"testing"
)

func TestSkews(t *testing.T) {
	plane := func(name, version string) Node {
		return Node{Name: name, Address: "10.0.0.1", Version: version, ControlPlane: true}
	}
	worker := func(name, version string) Node { return Node{Name: name, Address: "10.0.0.9", Version: version} }
	for _, test := range []struct {
		name  string
		nodes []Node
		want  []string // machine and a part of the reason
	}{
		{"none", nil, nil},
		{"only workers", []Node{worker("w", "v1.30.0"), worker("x", "v1.40.0")}, nil},
		{"equal", []Node{plane("a", "v1.37.2"), worker("w", "v1.37.0")}, nil},
		{"unknown", []Node{plane("a", ""), worker("w", "v1.37.0")}, nil},
		{"during an upgrade", []Node{plane("a", "v1.37.2"), plane("b", "v1.36.3"), worker("w", "v1.36.3"), worker("x", "v1.34.0")}, nil},
		{"API servers", []Node{plane("a", "v1.37.2"), plane("b", "v1.35.3")}, []string{"b: its API server (Kubernetes v1.35.3) is 2 minor versions older than that of a (v1.37.2)"}},
		{"a newer kubelet", []Node{plane("a", "v1.37.2"), plane("b", "v1.36.3"), worker("w", "v1.37.2")}, []string{"w: its kubelet (Kubernetes v1.37.2) is newer than the API server of b (v1.36.3)"}},
		{"an old kubelet", []Node{plane("a", "v1.37.2"), worker("w", "v1.33.2")}, []string{"w: its kubelet (Kubernetes v1.33.2) is 4 minor versions older"}},
	} {
		got := Skews(test.nodes)
		if len(got) != len(test.want) {
			t.Errorf("%s: %v", test.name, got)
			continue
		}
		for i, s := range got {
			if text := s.Machine.Name + ": " + s.Reason; !strings.HasPrefix(text, test.want[i]) || s.Remedy == "" {
				t.Errorf("%s: %s; %s", test.name, text, s.Remedy)
			}
		}
	}
}

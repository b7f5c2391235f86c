package config

import (
	"strings"
	"testing"
)

// TestArtifact checks that names with a digest are parsed and printed unchanged, and that other
// names are rejected.
func TestArtifact(t *testing.T) {
	sum := strings.Repeat("0a", 32)
	for _, name := range []string{
		"registry.example.com/team/ingress", "registry:5000/a", "localhost/a-b--c_d__e.f/0", "10.0.0.1:5000/a", "[2001:db8::1]:443/a",
	} {
		var a Artifact
		if err := a.UnmarshalText([]byte(name + "@sha256:" + sum)); err != nil || a.String() != name+"@sha256:"+sum || a.SHA256 != sum {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	for _, text := range []string{
		"", "@sha256:" + sum, "registry.example.com@sha256:" + sum, "registry.example.com/@sha256:" + sum, "registry.example.com/a//b@sha256:" + sum,
		"registry.example.com/a/@sha256:" + sum, "registry.example.com/-a@sha256:" + sum, "registry.example.com/a-@sha256:" + sum,
		"registry.example.com/a..b@sha256:" + sum, "registry.example.com/a___b@sha256:" + sum, "registry.example.com/a._b@sha256:" + sum,
		"registry.example.com/A@sha256:" + sum, "Registry.example.com/a@sha256:" + sum, "registry.example.com/é@sha256:" + sum,
		"registry.example.com/a@sha512:" + sum, "registry.example.com/a@sha256:" + strings.ToUpper(sum), "registry.example.com/a@sha256:" + sum + "0",
		"registry.example.com/" + strings.Repeat("a", 255) + "@sha256:" + sum, "https://registry.example.com/a@sha256:" + sum,
	} {
		var a Artifact
		if err := a.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("the invalid name %q is parsed as %+v", text, a)
		}
	}
	a := Artifact{"registry.example.com", "team/ingress", sum}
	if got := a.In("mirror.example.com/outside"); got != "mirror.example.com/outside/team/ingress@sha256:"+sum {
		t.Errorf("the name in a mirror is %s", got)
	}
}

package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestSealedLimits checks the number and the size of sealed policies, at the limits and beyond.
func TestSealedLimits(t *testing.T) {
	policies := func(count, size int) []string {
		var b strings.Builder
		for i := range count {
			fmt.Fprintf(&b, "---\napiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: p%d.static.k8s.io}\n", i)
		}
		if pad := size - b.Len(); pad > 0 {
			b.WriteString("#" + strings.Repeat("x", pad-1))
		}
		return []string{b.String()}
	}
	for _, c := range []struct {
		name        string
		count, size int
		want        string
	}{
		{"the most objects", 64, 0, ""},
		{"too many objects", 65, 0, "65 objects; expected at most 64"},
		{"the longest text", 1, 128 << 10, ""},
		{"too long a text", 1, 128<<10 + 1, "of text; expected at most 128KiB"},
	} {
		r := newReport("x.yaml", nil)
		clusterValidator{checks: checks{r}}.sealedPolicies("sealedPolicies", &Kubernetes{SealedPolicies: SealedPolicies{Manifests: policies(c.count, c.size)}})
		if got := r.problems.Error(); (c.want == "") != (len(r.problems) == 0) || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

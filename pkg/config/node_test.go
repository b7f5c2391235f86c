package config

import (
	"slices"
	"strings"
	"testing"
)

// TestNodeFlags checks that ParseTaint and ParseLabel parse kubectl's format, and reject other
// texts.
func TestNodeFlags(t *testing.T) {
	for text, want := range map[string]Taint{
		"dedicated=gpu:NoSchedule":  {"dedicated", "gpu", TaintNoSchedule},
		"example.com/a:NoExecute":   {"example.com/a", "", TaintNoExecute},
		"a=:PreferNoSchedule":       {"a", "", TaintPreferNoSchedule},
		"a b=c d:PreferNoSchedule":  {"a b", "c d", TaintPreferNoSchedule}, // Check rejects it
		"a":                         {},
		"a=b":                       {},
		"a=b:":                      {},
		":NoSchedule":               {},
		"a=b:noschedule":            {},
		"a=b:NoSchedule:NoSchedule": {},
	} {
		got, err := ParseTaint(text)
		if got != want || (err == nil) != (want != Taint{}) {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
		if again, err := ParseTaint(got.String()); want != (Taint{}) && (err != nil || again != got) {
			t.Errorf("%s: printed as %s, which is parsed as %v, %v", text, got, again, err)
		}
	}
	for text, want := range map[string][2]string{"a=b": {"a", "b"}, "a/b=": {"a/b", ""}, "a=b=c": {"a", "b=c"}, "a": {}, "=b": {}, "": {}} {
		key, value, err := ParseLabel(text)
		if [2]string{key, value} != want || (err == nil) != (want[0] != "") {
			t.Errorf("%s: %q, %q, %v", text, key, value, err)
		}
	}
}

// TestNodeLabelsStay checks that labels with empty values, and with values that look like other
// YAML types, are printed unchanged.
func TestNodeLabelsStay(t *testing.T) {
	c := New("a", RoleWorker).WithNode(Node{
		Labels: map[string]string{"gpu": "", "on": "true", "rack": "017", "topology.kubernetes.io/zone": "1.5"},
		Taints: []Taint{{Key: "example.com/a", Effect: TaintNoExecute}},
	})
	again, problems := Parse("", Marshal(c))
	if len(problems) > 0 || !Equal(c, again) {
		t.Errorf("%v, %q", problems, Changes(c, again))
	}
}

// TestKubeletLabels checks that the accepted labels are those that the upstream kubelet accepts and
// NodeRestriction permits.
func TestKubeletLabels(t *testing.T) {
	may := strings.Fields("a example.com/a topology.kubernetes.io/zone topology.kubernetes.io/region node.kubernetes.io/instance-type " +
		"node.kubernetes.io/exclude-from-external-load-balancers feature.node.kubernetes.io/x kubelet.kubernetes.io/x a.kubelet.kubernetes.io/x " +
		"notkubernetes.io/a example.k8s.io.example.com/a")
	mayNot := strings.Fields("kubernetes.io/hostname kubernetes.io/a k8s.io/a a.k8s.io/b node-role.kubernetes.io/control-plane notnode.kubernetes.io/a " +
		"node-restriction.kubernetes.io/a a.node-restriction.kubernetes.io/b beta.kubernetes.io/os failure-domain.beta.kubernetes.io/zone topology.kubernetes.io/a")
	for _, key := range slices.Concat(may, mayNot) {
		if w := labelProblem(key); (w.reason == "") != slices.Contains(may, key) {
			t.Errorf("%s: %q", key, w.reason)
		}
	}
}

package nodelabels

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// labelled parses labels such as "a=1 b=".
func labelled(words string) map[string]string {
	out := map[string]string{}
	for _, word := range strings.Fields(words) {
		key, value, _ := strings.Cut(word, "=")
		out[key] = value
	}
	return out
}

// tainted parses taints such as "a=1:NoSchedule b:NoExecute".
func tainted(words string) (out []nodespec.Taint) {
	for _, word := range strings.Fields(words) {
		head, effect, _ := strings.Cut(word, ":")
		key, value, _ := strings.Cut(head, "=")
		out = append(out, nodespec.Taint{Key: key, Value: value, Effect: effect})
	}
	return out
}

// onNode parses taints as tainted does, into the type of a Node.
func onNode(words string) (out []corev1.Taint) {
	for _, t := range tainted(words) {
		out = append(out, taint(t))
	}
	return out
}

func shown(taints []corev1.Taint) string {
	var words []string
	for _, t := range taints {
		words = append(words, t.ToString())
	}
	return strings.Join(words, " ")
}

// TestLabels checks the changes of LabelStep to the labels of a Node. Each case has the labels of
// the Node before the step (have), the annotation with the keys of our labels (keys), the
// configured labels (want), and the labels with which the kubelet registered the Node (registered).
// The expected results are the labels (then) and the annotation (remembered) after the step.
func TestLabels(t *testing.T) {
	for name, c := range map[string]struct {
		have, keys, want, registered string
		then, remembered             string
	}{
		"no configured labels":                           {"kubernetes.io/hostname=n", "", "", "", "kubernetes.io/hostname=n", ""},
		"new Node":                                       {"h=n a=1", "", "a=1", "a=1", "a=1 h=n", `["a"]`},
		"existing Node":                                  {"h=n", "", "a=1 b=", "", "a=1 b= h=n", `["a","b"]`},
		"configured value changed":                       {"a=1", `["a"]`, "a=2", "a=1", "a=2", `["a"]`},
		"a configured label is removed":                  {"a=1 b=1", `["a","b"]`, "b=1", "", "b=1", `["b"]`},
		"all configured labels are removed":              {"a=1 h=n", `["a"]`, "", "a=1", "h=n", "[]"},
		"configuration changed before the first step":    {"a=1 b=1 h=n", "", "b=2", "a=1 b=1", "b=2 h=n", `["b"]`},
		"configuration emptied before the first step":    {"a=1 h=n", "", "", "a=1", "h=n", "[]"},
		"label of another client":                        {"a=1 x=1", `["a"]`, "", "", "x=1", "[]"},
		"another client set our former label again":      {"a=1", "[]", "", "a=1", "a=1", "[]"},
		"another client changed a registered label":      {"a=2", "", "", "a=1", "a=2", "[]"},
		"configured label had a value of another client": {"x=1", "", "x=2", "", "x=2", `["x"]`},
		"another client changed ours":                    {"a=9", `["a"]`, "a=1", "", "a=1", `["a"]`},
		"another client removed ours":                    {"", `["a"]`, "a=1", "", "a=1", `["a"]`},
		"another client damaged the annotation":          {"a=1", `nonsense`, "b=1", "", "a=1 b=1", `["b"]`},
	} {
		n := Node{Labels: labelled(c.have), Keys: c.keys}
		want, registered := nodespec.NodeLabels{Labels: labelled(c.want)}, nodespec.NodeLabels{Labels: labelled(c.registered)}
		got := LabelStep(n, want, registered).apply(n)
		if !maps.Equal(got.Labels, labelled(c.then)) || got.Keys != c.remembered {
			t.Errorf("%s: %v, %s; want %s, %s", name, got.Labels, got.Keys, c.then, c.remembered)
		}
		if again := LabelStep(got, want, registered); !again.empty() {
			t.Errorf("%s: a second step has the changes %v", name, again)
		}
	}
}

// TestTaints checks the changes that LabelStep and TaintStep together make to the taints of a Node.
// Each case has the taints of the Node (have), those of them that TaintStep set before (before),
// and the configured taints (want). The expected results are the taints of the Node (then), and
// those of them that TaintStep has set (set).
func TestTaints(t *testing.T) {
	const waits = "orlop.dev/taints-pending:NoSchedule"
	for name, c := range map[string]struct {
		have, before, want string
		then, set          string
	}{
		"no configured taints":                       {"x:NoSchedule", "", "", "x:NoSchedule", ""},
		"new Node":                                   {"node-role.kubernetes.io/control-plane:NoSchedule " + waits, "", "a=1:NoSchedule", "node-role.kubernetes.io/control-plane:NoSchedule a=1:NoSchedule", "a=1:NoSchedule"},
		"new Node without configured taints":         {waits, "", "", "", ""},
		"existing Node":                              {"x:NoExecute", "", "a=1:NoSchedule a=1:NoExecute", "x:NoExecute a=1:NoSchedule a=1:NoExecute", "a=1:NoExecute a=1:NoSchedule"},
		"configured value changed":                   {"a=1:NoSchedule x:NoSchedule", "a=1:NoSchedule", "a=2:NoSchedule", "a=2:NoSchedule x:NoSchedule", "a=2:NoSchedule"},
		"configured effect changed":                  {"a=1:NoSchedule", "a=1:NoSchedule", "a=1:NoExecute", "a=1:NoExecute", "a=1:NoExecute"},
		"a configured taint is removed":              {"a:NoSchedule b:NoSchedule", "a:NoSchedule b:NoSchedule", "b:NoSchedule", "b:NoSchedule", "b:NoSchedule"},
		"all configured taints are removed":          {"a:NoSchedule", "a:NoSchedule", "", "", ""},
		"taint of another client":                    {"a:NoSchedule x:NoSchedule a:NoExecute", "a:NoSchedule", "", "x:NoSchedule a:NoExecute", ""},
		"configured taint was set by another client": {"x=1:NoSchedule", "", "x=1:NoSchedule", "x=1:NoSchedule", ""},
		"another client set another value":           {"x=1:NoSchedule", "", "x=2:NoSchedule", "x=1:NoSchedule", ""},
		"another client changed ours":                {"a=9:NoSchedule", "a=1:NoSchedule", "a=1:NoSchedule", "a=1:NoSchedule", "a=1:NoSchedule"},
		"another client removed ours":                {"x:NoSchedule", "a=1:NoSchedule", "a=1:NoSchedule", "x:NoSchedule a=1:NoSchedule", "a=1:NoSchedule"},
		"another client removed our former taint":    {"x:NoSchedule", "a=1:NoSchedule", "", "x:NoSchedule", ""},
		"taints with keys of Kubernetes":             {"node.kubernetes.io/unreachable:NoExecute", "", "node.kubernetes.io/unreachable:NoExecute node-role.kubernetes.io/control-plane:NoSchedule orlop.dev/x:NoSchedule", "node.kubernetes.io/unreachable:NoExecute", ""},
	} {
		n := Node{Taints: onNode(c.have), Set: encode(tainted(c.before))}
		want := nodespec.NodeLabels{Taints: tainted(c.want)}
		got := settle(t, n, want)
		if shown(got.Taints) != c.then || got.Set != encode(tainted(c.set)) {
			t.Errorf("%s: %s, %s; want %s, %s", name, shown(got.Taints), got.Set, c.then, c.set)
		}
		if c.set == "" && c.want == "" && (got.Wanted != "" || got.Set != "") {
			t.Errorf("%s: the annotations are not empty: %s, %s", name, got.Wanted, got.Set)
		}
	}
	n := Node{Taints: onNode("a:NoSchedule"), Set: `[{"key":"a","effect":"NoSchedule"}]`}
	if c, err := TaintStep(n); err != nil || !c.empty() {
		t.Errorf("a Node without annotations: %v, %v", c, err)
	}
	n.Wanted = "nonsense"
	if c, err := TaintStep(n); err == nil || !c.empty() {
		t.Errorf("a Node with invalid annotations: %v, %v", c, err)
	}
}

// settle repeats LabelStep and TaintStep until both return no change.
func settle(t *testing.T, n Node, want nodespec.NodeLabels) Node {
	t.Helper()
	for range 8 {
		one := LabelStep(n, want, nodespec.NodeLabels{})
		n = one.apply(n)
		two, err := TaintStep(n)
		if err != nil {
			t.Fatal(err)
		}
		n = two.apply(n)
		if one.empty() && two.empty() {
			return n
		}
	}
	t.Fatalf("changes to %v remain after eight steps", n)
	return n
}

// TestForeignLabelsStay makes random changes to configurations and Nodes, and calls the steps of
// both components in between. Labels and taints of other clients must never change. In the end, the
// Node has all configured labels and taints, and none that were removed from the configuration.
func TestForeignLabelsStay(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		keys, effects := []string{"a", "b", "c", "d"}, []string{"NoSchedule", "NoExecute"}
		var n Node
		var want nodespec.NodeLabels
		others := map[string]string{} // the taints of other clients: values by key and effect
		foreign := map[string]string{}
		ours := func(t nodespec.Taint) bool {
			set, _ := parse[nodespec.Taint](n.Set)
			return slices.ContainsFunc(set, func(s nodespec.Taint) bool { return s.Key == t.Key && s.Effect == t.Effect })
		}
		for range 60 {
			value := fmt.Sprint(r.IntN(2))
			tt := nodespec.Taint{Key: keys[r.IntN(4)], Value: value, Effect: effects[r.IntN(2)]}
			same := func(o corev1.Taint) bool { return o.Key == tt.Key && string(o.Effect) == tt.Effect }
			switch r.IntN(5) {
			case 0: // the configuration changes; labels of other clients have other keys
				want = nodespec.NodeLabels{Labels: map[string]string{}}
				for range r.IntN(4) {
					want.Labels[keys[r.IntN(4)]] = fmt.Sprint(r.IntN(2))
				}
				for _, key := range keys[:r.IntN(4)] {
					want.Taints = append(want.Taints, nodespec.Taint{Key: key, Value: value, Effect: effects[r.IntN(2)]})
				}
			case 1: // another client sets a foreign taint and a label
				if !ours(tt) && !slices.ContainsFunc(n.Taints, same) {
					n.Taints = append(slices.Clone(n.Taints), taint(tt))
					others[tt.Key+":"+tt.Effect] = value
				}
				n.Labels = maps.Clone(n.Labels)
				if n.Labels == nil {
					n.Labels = map[string]string{}
				}
				n.Labels["x"+tt.Key], foreign["x"+tt.Key] = value, value
			case 2: // another client removes any taint
				n.Taints = slices.DeleteFunc(slices.Clone(n.Taints), same)
				delete(others, tt.Key+":"+tt.Effect)
			case 3:
				n = LabelStep(n, want, nodespec.NodeLabels{}).apply(n)
			case 4:
				c, err := TaintStep(n)
				if err != nil {
					t.Fatal(err)
				}
				n = c.apply(n)
			}
			for at, value := range others {
				if !slices.ContainsFunc(n.Taints, func(o corev1.Taint) bool { return o.Key+":"+string(o.Effect) == at && o.Value == value }) {
					t.Fatalf("seed %d: the foreign taint %s=%s was changed: %s", seed, at, value, shown(n.Taints))
				}
			}
		}
		n = settle(t, n, want)
		labels := maps.Clone(foreign)
		maps.Copy(labels, want.Labels)
		if !maps.Equal(n.Labels, labels) {
			t.Errorf("seed %d: labels %v, want %v", seed, n.Labels, labels)
		}
		expected := maps.Clone(others)
		for _, w := range want.Taints {
			if _, taken := others[w.Key+":"+w.Effect]; !taken {
				expected[w.Key+":"+w.Effect] = w.Value
			}
		}
		got := map[string]string{}
		for _, o := range n.Taints {
			got[o.Key+":"+string(o.Effect)] = o.Value
		}
		if !maps.Equal(got, expected) {
			t.Errorf("seed %d: taints %v, want %v", seed, got, expected)
		}
	}
}

// TestDescribe checks the status text of the component on a node.
func TestDescribe(t *testing.T) {
	want := nodespec.NodeLabels{Labels: labelled("a=1"), Taints: tainted("a=1:NoSchedule")}
	for then, n := range map[string]Node{
		"1 labels, 1 taints of the configuration":                                                           {Taints: onNode("a=1:NoSchedule")},
		"1 labels, 1 taints of the configuration; the control plane has not set the taint a:NoSchedule yet": {},
		"1 labels, 1 taints of the configuration; another client has set the taint a=2:NoSchedule: `kubectl taint node n a:NoSchedule-` makes room for the configured taint": {Taints: onNode("a=2:NoSchedule")},
	} {
		if got := describe("n", n, want); got != then {
			t.Errorf("%s\nwant %s", got, then)
		}
	}
}

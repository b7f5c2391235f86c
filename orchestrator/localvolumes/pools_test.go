package localvolumes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pooled returns an input with two nodes: node a has pool "fast" of 8 GiB, and node b has no named
// pool.
func pooled(claims ...Claim) Input {
	return Input{
		Reserve: gib,
		Nodes: []Node{
			{Name: "a", Hostname: "a", Report: Report{Filesystem: "f1", Size: 4 * gib}},
			{Name: "a", Pool: "fast", Hostname: "a/fast", Report: Report{Filesystem: "f2", Size: 8 * gib}},
			{Name: "b", Hostname: "b", Report: Report{Filesystem: "f3", Size: 4 * gib}},
		},
		Classes: []StorageClass{{Name: "orlop-local"}, {Name: "orlop-local-fast", Pool: "fast"}},
		Claims:  claims,
	}
}

func pooledClaim(class, node string, size int64) Claim {
	return Claim{Key: "d/c", UID: "11111111-1111-1111-1111-111111111111", Created: time.Unix(1, 0), Class: class, Node: node, Size: size}
}

// lines returns the operations as text, one per line, without SetCapacity.
func lines(ops []Op) string {
	var all []string
	for _, op := range ops {
		if _, capacity := op.(SetCapacity); !capacity {
			all = append(all, op.String())
		}
	}
	return strings.Join(all, "\n")
}

// TestPools checks that the volumes of a class are created in the pool of the class, if the pool
// has the space. If a node has not reported a pool, the data in the pool are not considered lost.
func TestPools(t *testing.T) {
	const name = "pvc-11111111-1111-1111-1111-111111111111"
	released := Volume{Name: name, Node: "a/fast", Filesystem: "f2", Size: gib, Released: true, Deleting: true}
	for title, c := range map[string]struct {
		input func() Input
		want  string
	}{
		"in the pool":                {func() Input { return pooled(pooledClaim("orlop-local-fast", "a", 5*gib)) }, fmt.Sprintf("give claim d/c volume %s on a/fast (%d bytes)", name, 5*gib)},
		"on DATA":                    {func() Input { return pooled(pooledClaim("orlop-local", "a", gib)) }, fmt.Sprintf("give claim d/c volume %s on a (%d bytes)", name, gib)},
		"larger than DATA":           {func() Input { return pooled(pooledClaim("orlop-local", "a", 5*gib)) }, "request another node for claim d/c: node a has room for 2.4 GiB, but 5 GiB are requested"},
		"a node without the pool":    {func() Input { return pooled(pooledClaim("orlop-local-fast", "b", gib)) }, "request another node for claim d/c: node b has no volume fast"},
		"a node that does not exist": {func() Input { return pooled(pooledClaim("orlop-local-fast", "x", gib)) }, "request another node for claim d/c: node x does not exist"},
		"a pool without its disk": {func() Input {
			w := pooled(pooledClaim("orlop-local-fast", "a", gib))
			w.Nodes[1].Report = Report{Filesystem: "f2", Problem: "its disk is missing"}
			return w
		}, "request another node for claim d/c: node a has no volumes: its disk is missing"},
		"a copy from another disk": {func() Input {
			claim := pooledClaim("orlop-local", "", gib)
			claim.Source = Source{Claim: "d/s"}
			w := pooled(claim, Claim{Key: "d/s", UID: "s", Class: "orlop-local-fast", Volume: "pvc-s", Size: gib, Has: gib})
			w.Volumes = []Volume{{Name: "pvc-s", Node: "a/fast", Filesystem: "f2", ClaimUID: "s", Size: gib}}
			return w
		}, "reject claim d/c: its source pvc-s is on another disk (a/fast): use the StorageClass of the source"},
		"a removal":                              {func() Input { w := pooled(); w.Volumes = []Volume{released}; return w }, "request node a/fast to destroy: " + name},
		"a removal without a report of the pool": {func() Input { w := pooled(); w.Volumes = []Volume{released}; w.Nodes = w.Nodes[:1]; return w }, "request node a/fast to destroy: " + name},
		"a removal without the node":             {func() Input { w := pooled(); w.Volumes = []Volume{released}; w.Nodes = w.Nodes[2:]; return w }, "finish volume " + name},
		"a pool without a class":                 {func() Input { w := pooled(); w.Classes = w.Classes[:1]; return w }, "create StorageClass orlop-local-fast of volume fast"},
		"a pool with a problem, without a class": {func() Input {
			w := pooled()
			w.Classes = w.Classes[:1]
			w.Nodes[1].Report.Problem = "its disk is missing"
			return w
		}, ""},
	} {
		if got := lines(Step(c.input())); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", title, got, c.want)
		}
	}
}

// TestPoolCapacities checks that each class gets the capacity of its pool, only on the nodes with
// this pool.
func TestPoolCapacities(t *testing.T) {
	var got []string
	for _, op := range Step(pooled()) {
		if c, ok := op.(SetCapacity); ok {
			got = append(got, fmt.Sprintf("%s on %s: %d MiB", c.Class, c.Hostname, c.Bytes>>20))
		}
	}
	want := []string{"orlop-local on a: 2457 MiB", "orlop-local-fast on a: 6963 MiB", "orlop-local on b: 2457 MiB"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReadNodes checks that readNodes returns a pool for each report with a valid name of the pool,
// also after trim. It also checks that the annotations of the pool on DATA and of 4 named pools are
// together within the limit for an object.
func TestReadNodes(t *testing.T) {
	report := func(problem string) string {
		text, err := json.Marshal(Report{Problem: problem, Filesystem: "f"})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelHostname: "a"}, Annotations: map[string]string{
		ReportAnnotation: report("one"), ReportAnnotation + ".fast": report("two"), ReportAnnotation + ".Bad_Name": report("three"), ReportAnnotation + "." + strings.Repeat("x", 33): report("four"),
		annotation(ObsoleteAnnotation, "fast"): `["pvc-11111111-1111-1111-1111-111111111111"]`,
	}}}
	trimmed, err := trim(node)
	if err != nil {
		t.Fatal(err)
	}
	all := readNodes(trimmed)
	if len(all) != 2 || all[0].Hostname != "a" || all[0].Report.Problem != "one" || all[1].Hostname != "a/fast" || all[1].Pool != "fast" || all[1].Report.Problem != "two" || len(all[1].Obsolete) != 1 {
		t.Errorf("%+v", all)
	}
	other := node.DeepCopy()
	if !sameNodes(readNodes(node), readNodes(other)) {
		t.Error("Nodes without a relevant change count as changed")
	}
	other.Annotations[annotation(ReportAnnotation, "fast")] = report("new")
	if sameNodes(readNodes(node), readNodes(other)) {
		t.Error("a changed report of a pool does not count as a change")
	}
	const volume, reason = 45 + 23, maxReason + 49
	size := func(pool string) int {
		l := limitsOf(pool)
		return l.names*volume + 2*l.obsolete*48 + l.copies*(volume+reason+137)
	}
	if all := size("") + 4*size("fast"); all > 220<<10 {
		t.Errorf("the annotations of a node can have %d bytes", all)
	}
}

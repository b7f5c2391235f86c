package machines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/machines/power"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestSameNode checks that sameNode ignores heartbeats of a kubelet, and detects changes of fields
// that Plan uses.
func TestSameNode(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "m1", ResourceVersion: "1", Labels: map[string]string{"example.com/x": ""}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
		change(n)
		return n
	}
	before := node(func(*corev1.Node) {})
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		same   bool
	}{
		"heartbeat": {func(n *corev1.Node) {
			n.ResourceVersion, n.Status.Conditions[0].LastHeartbeatTime = "2", metav1.NewTime(time.Unix(1, 0))
		}, true},
		"images":      {func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}}} }, true},
		"label":       {func(n *corev1.Node) { n.Labels["example.com/y"] = "" }, true},
		"role":        {func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }, false},
		"unready":     {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, false},
		"version":     {func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.37.3" }, false},
		"provider ID": {func(n *corev1.Node) { n.Spec.ProviderID = "orlop:///c/m1" }, false},
	} {
		if got := sameNode(before, node(c.change)); got != c.same {
			t.Errorf("%s: same %v, want %v", name, got, c.same)
		}
	}
}

// TestFencesWaitForNothing checks that the pass with the fences does not read pods for power on
// demand, and does not use the fields of the loop for the inventory. The test sets these fields to
// nil, so their use would panic.
func TestFencesWaitForNothing(t *testing.T) {
	acts, _ := requests(t, "{}")
	var pods []corev1.Pod
	c, d, _ := demandWorld(t, &pods)
	c.acts, c.now, c.inventoryLoop = acts, time.Now, inventoryLoop{}
	c.switches = power.New(t.Context(), fake.NewClientset(), func() {})
	c.caches = caches{
		nodes: filled(t, &corev1.Node{}), clusters: filled(t, &clusterv1.Cluster{}, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}), infra: filled(t, &machineapi.OrlopCluster{}), planes: filled(t, &controlplane.OrlopControlPlane{}),
		machines: filled(t, &clusterv1.Machine{}), checks: filled(t, &clusterv1.MachineHealthCheck{}), own: filled(t, &machineapi.OrlopMachine{}), hosts: filled(t, &machineapi.OrlopHost{}),
		sets: c.sets, deployments: filled(t, &clusterv1.MachineDeployment{}, d), templates: c.templates, rules: filled(t, &machineapi.OrlopApprovalRule{}),
		jobs: filled(t, &batchv1.Job{}), cronJobs: filled(t, &batchv1.CronJob{}),
	}
	if _, err := c.pass(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDetails checks that the details of the two loops are joined to one text, and that the text is
// reported only if it changes.
func TestDetails(t *testing.T) {
	var got []string
	d := &details{report: func(text string) { got = append(got, text) }}
	d.set(&d.first, "2 machines")
	d.set(&d.second, "no file")
	d.set(&d.second, "no file")
	d.set(&d.second, "")
	if want := []string{"2 machines", "2 machines; no file", "2 machines"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReadSettings checks the values that readSettings reads from a node specification.
func TestReadSettings(t *testing.T) {
	s, err := readSettings(nodespec.Spec{Cluster: "c", Endpoint: "https://[2001:db8::1]:6443", Node: nodespec.Node{Name: "m1"}})
	if err != nil || s.Host != "2001:db8::1" || s.Port != 6443 || s.Own != "m1" || s.Name != "c" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := readSettings(nodespec.Spec{Endpoint: "https://10.0.0.1"}); err == nil {
		t.Error("readSettings accepts an endpoint without a port")
	}
}

// TestPerform checks that the next changes are performed if the API server rejects a change as
// invalid, or if the object has changed or is missing. Any other failure stops the changes.
func TestPerform(t *testing.T) {
	var changes []Change
	for _, name := range []string{"m1", "m2", "m3"} {
		changes = append(changes, Change{Status, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}})
	}
	resource := clusterv1.GroupVersion.WithResource("machines").GroupResource()
	for what, c := range map[string]struct {
		failure error
		done    int
		want    string // a part of the error; empty: no error
	}{
		"success":     {nil, 3, ""},
		"conflict":    {apierrors.NewConflict(resource, "m1", errors.New("changed")), 3, ""},
		"missing":     {apierrors.NewNotFound(resource, "m1"), 3, ""},
		"invalid":     {apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("Machine").GroupKind(), "m1", nil), 3, "cannot write status Machine m1: "},
		"unavailable": {apierrors.NewServiceUnavailable("no etcd"), 1, "cannot write status Machine m1: no etcd"},
	} {
		done := 0
		err := perform(changes, func(change Change) error {
			if done++; change.Object == changes[0].Object {
				return c.failure
			}
			return nil
		})
		if done != c.done || (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d changes, want %d; error %v, want %q", what, done, c.done, err, c.want)
		}
	}
}

// TestPeers checks that a permit contains only valid IP addresses, even if a kubelet writes another
// text to its Node. It also checks that the permit of a control-plane machine contains no workers.
func TestPeers(t *testing.T) {
	var all []*machine
	for i, address := range []string{"10.0.0.1", strings.Repeat("x", 65), "fd00::1"} {
		all = append(all, &machine{
			name: fmt.Sprint("m", i), controlPlane: i == 2, ready: health{status: metav1.ConditionTrue},
			node: &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}}},
			own:  &machineapi.OrlopMachine{Status: machineapi.OrlopMachineStatus{Release: &machineapi.RunningRelease{Version: "1.2.0"}}},
		})
	}
	to := &machine{name: "m3", want: machineapi.ReleaseReference{Version: "1.2.0"}}
	if got := peers(all, to); !slices.Equal(got, []string{"10.0.0.1", "fd00::1"}) {
		t.Errorf("peers in the permit of a worker: %q", got)
	}
	to.controlPlane = true
	if got := peers(all, to); !slices.Equal(got, []string{"fd00::1"}) {
		t.Errorf("peers in the permit of a control-plane machine: %q", got)
	}
}

// TestServed checks that served reports the kind for which it waits, and ends when the API server
// serves all kinds.
func TestServed(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) <= 5 && strings.HasSuffix(r.URL.Path, "/orlopclusters") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{}`))
	}))
	t.Cleanup(server.Close)
	c, err := newClients(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var reports []string
	if !c.served(ctx, false, func(detail string) { reports = append(reports, detail) }) {
		t.Error("served has not ended, although the API server serves all kinds")
	}
	const want = "waiting for the kinds of machines: the server could not find the requested resource (get orlopclusters.infrastructure.cluster.x-k8s.io)"
	if !slices.Equal(reports, []string{want}) {
		t.Errorf("%q, want %q", reports, want)
	}
}

// TestPowerChanges checks how a fence, an order, a permit and a taint are written. Each write
// applies only to the version of the object that Plan has read. It changes no other field, and
// replaces the former value as a whole. So an order without a phase removes the phase of the former
// order.
func TestPowerChanges(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = append(got, r.Method+" "+r.URL.Path+" "+string(body))
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{}`))
	}))
	t.Cleanup(server.Close)
	c, err := newClients(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: "w1", UID: "u1", ResourceVersion: "7"}
	own := &machineapi.OrlopMachine{ObjectMeta: meta}
	node := &corev1.Node{ObjectMeta: meta, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}, ProviderID: "x"}}
	ordered := own.DeepCopy()
	ordered.Spec.Repair = &machineapi.RepairOrder{Step: "PowerCycle", Attempt: 2, Given: metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))}
	permitted := own.DeepCopy()
	permitted.Spec.Permit = &machineapi.Permit{Release: machineapi.ReleaseReference{Version: "1.1.0"}, Expires: ordered.Spec.Repair.Given}
	for _, change := range []Change{{Fence, own}, {Repair, ordered}, {Permit, permitted}, {Taint, node}} {
		if err := c.do(t.Context(), change); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		`PATCH /apis/infrastructure.cluster.x-k8s.io/v1alpha1/namespaces/orlop-machines/orlopmachines/w1 {"metadata":{"resourceVersion":"7","uid":"u1"},"spec":{"fence":null}}`,
		`PATCH /apis/infrastructure.cluster.x-k8s.io/v1alpha1/namespaces/orlop-machines/orlopmachines/w1 {"metadata":{"resourceVersion":"7","uid":"u1"},"spec":{"repair":{"attempt":2,"given":"2026-01-01T12:00:00Z","phase":null,"step":"PowerCycle"}}}`,
		`PATCH /apis/infrastructure.cluster.x-k8s.io/v1alpha1/namespaces/orlop-machines/orlopmachines/w1 {"metadata":{"resourceVersion":"7","uid":"u1"},"spec":{"permit":{"expires":"2026-01-01T12:00:00Z","peers":null,"release":{"image":null,"version":"1.1.0"}}}}`,
		`PATCH /api/v1/nodes/w1 {"metadata":{"resourceVersion":"7","uid":"u1"},"spec":{"taints":[{"key":"k","effect":"NoExecute"}]}}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReadPower checks for which machines readPower reads the facts about the power switch. If
// there is a MachineHealthCheck, a lost machine is one of them.
func TestReadPower(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	own := func(name string, spec machineapi.OrlopMachineSpec) *machineapi.OrlopMachine {
		return &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	cycle := func(phase string, age time.Duration) machineapi.OrlopMachineSpec {
		return machineapi.OrlopMachineSpec{Repair: &machineapi.RepairOrder{Step: "PowerCycle", Attempt: 1, Given: metav1.NewTime(now.Add(-age)), Phase: phase}}
	}
	s := Snapshot{Now: now, Checks: []*clusterv1.MachineHealthCheck{{}}}
	for _, c := range []struct {
		name  string
		ready corev1.ConditionStatus
		spec  machineapi.OrlopMachineSpec
	}{
		{"healthy", corev1.ConditionTrue, machineapi.OrlopMachineSpec{Power: &machineapi.MachinePower{Secret: "s"}}},
		{"unready", corev1.ConditionFalse, machineapi.OrlopMachineSpec{}},
		{"lost", corev1.ConditionUnknown, machineapi.OrlopMachineSpec{}},
		{"fenced", corev1.ConditionTrue, machineapi.OrlopMachineSpec{Fence: &machineapi.MachineFence{Phase: "Return"}}},
		{"ordered", corev1.ConditionTrue, cycle("", time.Minute)},
		{"expired", corev1.ConditionTrue, cycle("", time.Hour)},
		{"cycled", corev1.ConditionTrue, cycle("SwitchOn", time.Hour)},
		{"done", corev1.ConditionTrue, cycle("Done", time.Minute)},
	} {
		s.Nodes, s.Own = append(s.Nodes, node(c.name, c.ready)), append(s.Own, own(c.name, c.spec))
	}
	c := &controller{switches: power.New(t.Context(), fake.NewClientset(), func() {}), now: time.Now}
	for _, want := range []string{"cycled fenced lost ordered", "cycled fenced ordered"} {
		if err := c.readPower(t.Context(), &s); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(s.Power)), " "); got != want || s.Leases == nil || !s.Power["fenced"].Pods.Read || s.Power["lost"].Pods.Read || !strings.Contains(s.Power["fenced"].Switch.Access, "set spec.power") {
			t.Errorf("%q, want %q: %+v", got, want, s.Power)
		}
		s.Checks = nil // without a MachineHealthCheck, no fence begins
	}
}

// TestFreshPower checks that a decision about a power switch uses the present Node and the present
// Leases. A stale cache could show a Node as lost after it has returned.
func TestFreshPower(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	client := fake.NewClientset(node("w1", corev1.ConditionTrue), node("w3", corev1.ConditionTrue))
	c := &controller{acts: &clients{nodes: client}, switches: power.New(t.Context(), client, func() {}), now: func() time.Time { return now }}
	own := func(name string, fence *machineapi.MachineFence) *machineapi.OrlopMachine {
		return &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: machineapi.OrlopMachineSpec{Fence: fence}}
	}
	s := Snapshot{
		Nodes: []*corev1.Node{node("w1", corev1.ConditionUnknown), node("w2", corev1.ConditionUnknown), node("w3", corev1.ConditionUnknown)},
		Own:   []*machineapi.OrlopMachine{own("w1", &machineapi.MachineFence{Phase: "SwitchOff"}), own("w2", &machineapi.MachineFence{Phase: "Release"}), own("w3", nil)},
		Power: map[string]power.Facts{},
	}
	if err := c.freshPower(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	if n := named(s.Nodes, "w1"); n == nil || nodeReady(n).Status != corev1.ConditionTrue {
		t.Errorf("Node w1 is stale: %+v", n)
	}
	if n := named(s.Nodes, "w2"); n != nil {
		t.Errorf("Node w2 does not exist any more, but is in the snapshot: %+v", n)
	}
	if n := named(s.Nodes, "w3"); nodeReady(n).Status != corev1.ConditionUnknown {
		t.Error("Node w3 was read, although its power switch is not operated")
	}
	if !s.LeasesRead.Equal(now) || s.Leases == nil || !s.Power["w1"].Pods.Read {
		t.Errorf("the Leases or the pods were not read: %+v", s)
	}
}

package machines

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/machines/claims"
	"github.com/orlop-os/orlop/orchestrator/machines/hosts"
	"github.com/orlop-os/orlop/orchestrator/machines/power"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/disruption/ondemand"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// requests starts a server that records each request and responds with answer. It returns clients
// of this server, and a function that returns the requests since its last call. Each request is a
// line with the method, the last element of the path, and the body.
func requests(t *testing.T, answer string) (c *clients, got func() []string) {
	t.Helper()
	var all []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		all = append(all, r.Method+" "+r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]+" "+string(body))
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	c, err := newClients(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c, func() []string {
		now := all
		all = nil
		return now
	}
}

// filled returns an informer whose cache has these objects.
func filled[T runtime.Object](t *testing.T, example T, objects ...T) cache.SharedIndexInformer {
	t.Helper()
	i := cache.NewSharedIndexInformer(&cache.ListWatch{}, example, 0, cache.Indexers{})
	for _, o := range objects {
		if err := i.GetStore().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

// podsClient returns a client with a list of pods, which contains all of these pods that match the
// field selector of the request.
func podsClient(pods *[]corev1.Pod) *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("list", "pods", func(a kubetesting.Action) (bool, runtime.Object, error) {
		var list corev1.PodList
		selector := a.(kubetesting.ListAction).GetListRestrictions().Fields
		for _, p := range *pods {
			if selector.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName, "status.phase": string(p.Status.Phase)}) {
				list.Items = append(list.Items, p)
			}
		}
		return true, &list, nil
	})
	return client
}

var demandStart = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// pod returns a running pod on the Node node. If node is empty, the pod is pending, because the
// scheduler could not place it. The function change modifies the pod.
func pod(name, node, cpu string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi")}}}}
	if node == "" {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(demandStart.Add(-time.Minute)),
		}}}
	}
	change(&p)
	return p
}

func same(*corev1.Pod) {}

// demandWorld returns a controller with these pods, a MachineDeployment that demands power on
// demand, and a snapshot with the two machines of the MachineDeployment.
func demandWorld(t *testing.T, pods *[]corev1.Pod) (*controller, *clusterv1.MachineDeployment, Snapshot) {
	t.Helper()
	d := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Name: "rack", UID: "d", ResourceVersion: "7", Annotations: map[string]string{
		machineapi.OnDemandAnnotation: "true", machineapi.MinSizeAnnotation: "1", machineapi.MaxSizeAnnotation: "3",
	}}}
	d.Spec.ClusterName, d.Spec.Replicas = "c", new(int32(2))
	owner := func(kind, name string, uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: name, UID: uid, Controller: new(true)}}
	}
	set := &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{Name: "rack", UID: "s", ResourceVersion: "9", OwnerReferences: owner("MachineDeployment", "rack", "d")}}
	s := Snapshot{Now: demandStart, Cluster: &clusterv1.Cluster{}}
	for _, name := range []string{"rack-1", "rack-2"} {
		s.Machines = append(s.Machines, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
			Name: name, ResourceVersion: "8", Finalizers: []string{claims.Finalizer}, OwnerReferences: owner("MachineSet", "rack", "s"),
		}})
		s.Nodes = append(s.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "zone": "a"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "node.kubernetes.io/x", Effect: corev1.TaintEffectNoSchedule}, {Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	// This Machine has the labels of the set, but does not belong to the set, which is not its
	// owner.
	s.Machines = append(s.Machines, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{clusterv1.MachineDeploymentNameLabel: "rack", clusterv1.MachineSetNameLabel: "rack"}}})
	c := &controller{settings: Settings{Name: "c"}, inventoryLoop: inventoryLoop{reads: podsClient(pods)}}
	c.deployments, c.sets = filled(t, &clusterv1.MachineDeployment{}, d), filled(t, &clusterv1.MachineSet{}, set)
	c.templates, c.hosts = filled(t, &machineapi.OrlopMachineTemplate{}), filled(t, &machineapi.OrlopHost{})
	return c, d, s
}

// TestDemand scales a MachineDeployment up for a pod, and down after ten minutes without pods.
func TestDemand(t *testing.T) {
	daemon := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", Controller: new(true)}}
	}
	tolerates := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	}
	pods := []corev1.Pod{
		pod("log", "rack-1", "1", daemon), pod("a", "rack-1", "1", same), pod("b", "rack-2", "1", same),
		pod("large", "", "3500m", tolerates), pod("intolerant", "", "1", same), pod("right", "", "3", tolerates),
	}
	c, d, s := demandWorld(t, &pods)
	var got func() []string
	c.later, got = requests(t, "{}")
	known, err := json.Marshal(remembered{Shape: &ondemand.Shape{
		Resources: ondemand.Resources{CPU: 3000, Memory: 7 << 30, Pods: 109}, Labels: map[string]string{"zone": "a"}, Taints: []ondemand.Taint{{Key: "gpu", Effect: "NoSchedule"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.setOf(d).Annotations = map[string]string{machineapi.RememberedAnnotation: string(known)}
	pass := func(want ...string) {
		t.Helper()
		if err := c.passDemand(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if now := got(); !slices.Equal(now, want) {
			t.Errorf("%q, want %q (%+v)", now, want, c.demand.verdicts)
		}
		s.Now = s.Now.Add(demandInterval)
	}
	pass(`PATCH scale {"metadata":{"resourceVersion":"7","uid":"d"},"spec":{"replicas":3}}`)
	if v := c.demand.verdicts["rack"]; v.State != ondemand.Grows || v.Message != "1 machines are added for 1 pods that wait" {
		t.Errorf("%+v", v)
	}
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	static := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	pods = []corev1.Pod{pod("log", "rack-1", "1", daemon), pod("a", "rack-1", "1", same), pod("log", "rack-2", "1", daemon), pod("job", "rack-2", "1", ended), pod("static", "rack-2", "1", static)}
	pass()
	s.Now = s.Now.Add(-demandInterval + time.Second)
	pods = append(pods, pod("b", "rack-2", "1", same))
	pass() // one second after the last pass: the pods are not read
	pods = pods[:len(pods)-1]
	s.Now = s.Now.Add(ondemand.IdleTime)
	pass(`PATCH rack-2 {"metadata":{"annotations":{"cluster.x-k8s.io/delete-machine":"orlop-power-on-demand"},"resourceVersion":"8","uid":""}}`)
	s.Machines[1].Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: machineapi.MarkedOnDemand}
	pods = append(pods, pod("b", "rack-2", "1", same))
	pass(`PATCH rack-2 {"metadata":{"annotations":{"cluster.x-k8s.io/delete-machine":null},"resourceVersion":"8","uid":""}}`)
	pods = pods[:len(pods)-1]
	pass()
	s.Now = s.Now.Add(ondemand.IdleTime)
	pass(`PATCH scale {"metadata":{"resourceVersion":"7","uid":"d"},"spec":{"replicas":1}}`)
	s.Nodes[1].Annotations = map[string]string{machineapi.KeepAnnotation: "true"}
	pass(`PATCH rack-2 {"metadata":{"annotations":{"cluster.x-k8s.io/delete-machine":null},"resourceVersion":"8","uid":""}}`)
	s.Nodes[1].Annotations, s.Machines[1].Annotations = nil, map[string]string{machineapi.KeepAnnotation: "true"}
	pass()
	d.Annotations[clusterv1.PausedAnnotation] = ""
	pass()
	delete(d.Annotations, clusterv1.PausedAnnotation)
	d.Annotations[machineapi.MaxSizeAnnotation] = "many"
	pass()
	if v := c.demand.verdicts["rack"]; v.State != ondemand.Invalid || !strings.Contains(v.Message, machineapi.MaxSizeAnnotation) {
		t.Errorf("%+v", v)
	}
	delete(d.Annotations, machineapi.OnDemandAnnotation)
	if pass(); c.demand.verdicts != nil {
		t.Errorf("verdicts after an operator has disabled power on demand: %+v", c.demand)
	}
}

// TestRemember checks that the shape of a machine is stored in the MachineSet, for the time when
// the machine is removed. It also checks that recall returns the stored shape and pods, and no
// shape if the template has changed.
func TestRemember(t *testing.T) {
	pods := []corev1.Pod{}
	c, d, s := demandWorld(t, &pods)
	var got func() []string
	c.later, got = requests(t, "{}")
	pass := func() []string {
		t.Helper()
		if err := c.passDemand(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		return got()
	}
	d.Annotations[machineapi.MinSizeAnnotation] = "2"
	if now := pass(); now != nil {
		t.Errorf("the shape of a Node that has just become ready is stored: %q", now)
	}
	s.Now = s.Now.Add(ondemand.SettleTime)
	const want = `PATCH rack {"metadata":{"annotations":{"orlop.dev/power-on-demand-remembered":"{\"shape\":{\"cpu\":4000,\"memory\":8589934592,\"pods\":110,\"labels\":{\"zone\":\"a\"},\"taints\":[{\"key\":\"gpu\",\"effect\":\"NoSchedule\"}]}}"},"resourceVersion":"9","uid":"s"}}`
	if now := pass(); !slices.Equal(now, []string{want}) {
		t.Errorf("%q, want %q", now, want)
	}
	text, err := json.Marshal(remembered{Shape: &ondemand.Shape{Resources: ondemand.Resources{CPU: 1}}, Pods: []string{"uid"}})
	if err != nil {
		t.Fatal(err)
	}
	set := c.setOf(d)
	set.Annotations = map[string]string{machineapi.RememberedAnnotation: string(text)}
	if r := c.recall(d, set); r.Shape == nil || r.Shape.CPU != 1 || !slices.Equal(r.Pods, []string{"uid"}) {
		t.Errorf("%+v", r)
	}
	d.Spec.Template.Spec.InfrastructureRef.Name = "rack"
	c.templates = filled(t, &machineapi.OrlopMachineTemplate{}, &machineapi.OrlopMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "rack"}})
	if r := c.recall(d, set); r.Shape != nil || len(r.Pods) != 1 {
		t.Errorf("recall with another template: %+v, want no shape, and one pod", r)
	}
	set.Annotations[machineapi.RememberedAnnotation] = "{"
	if r := c.recall(d, set); r.Shape != nil || r.Pods != nil {
		t.Errorf("%+v", r)
	}
}

// TestShapes checks the facts about the machines of a MachineDeployment, and the shape of a machine
// that the MachineDeployment would add.
func TestShapes(t *testing.T) {
	pods := []corev1.Pod{}
	c, d, s := demandWorld(t, &pods)
	facts := func() ondemand.Deployment {
		t.Helper()
		f, err := c.demandFacts(t.Context(), s, d)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	pods = []corev1.Pod{pod("a", "rack-1", "1", same)}
	present := &ondemand.Shape{Resources: ondemand.Resources{CPU: 4000, Memory: 8 << 30, Pods: 110}, Labels: map[string]string{"zone": "a"}, Taints: []ondemand.Taint{{Key: "gpu", Effect: "NoSchedule"}}}
	room := &ondemand.Shape{
		Resources: ondemand.Resources{CPU: 3000, Memory: 7 << 30, Pods: 109}, Labels: map[string]string{"zone": "a", corev1.LabelHostname: "rack-1"},
		Taints: []ondemand.Taint{{Key: "node.kubernetes.io/x", Effect: "NoSchedule"}, {Key: "gpu", Effect: "NoSchedule"}},
	}
	f := facts()
	if len(f.Machines) != 2 || f.Min != 1 || f.Max != 3 || f.Replicas != 2 {
		t.Fatalf("%+v", f)
	}
	if m := f.Machines[0]; !reflect.DeepEqual(m.Whole, present) || !reflect.DeepEqual(m.Room, room) || m.Empty || m.Kept || !f.Machines[1].Empty {
		t.Errorf("facts about the present machines: %+v, shape %+v, free resources %+v", f, m.Whole, m.Room)
	}
	s.Machines[0].Finalizers = nil
	if m := facts().Machines[0]; !m.Kept {
		t.Errorf("a machine without the finalizer, which the set cannot remove, may be removed: %+v", m)
	}
	s.Nodes = nil
	if f := facts(); f.Stated != nil || f.Last != nil || f.Estimated != nil || len(f.Machines) != 2 || f.Machines[0].Whole != nil || f.Machines[0].Room != nil {
		t.Errorf("the facts contain a shape, although there are no Nodes: %+v", f)
	}
	h := &machineapi.OrlopHost{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: machineapi.OrlopHostSpec{Standby: &machineapi.HostStandby{Phase: "Off"}}}
	h.Status.Inventory = machineapi.HostInventory{CPUs: 8, MemoryMiB: 20480}
	if got, want := hostShape(&h.Status.Inventory), (ondemand.Resources{CPU: 7500, Memory: 18432 << 20, Pods: 110}); got.Resources != want {
		t.Errorf("shape of a host: %+v, want %+v", got, want)
	}
	d.Annotations[machineapi.CapacityCPUAnnotation], d.Annotations[machineapi.CapacityMemoryAnnotation] = "16", "64Gi"
	d.Annotations[machineapi.CapacityLabelsAnnotation], d.Annotations[machineapi.CapacityTaintsAnnotation] = "zone=b,disk=ssd", "gpu=yes:NoSchedule,soft=:PreferNoSchedule"
	want := &ondemand.Shape{Resources: ondemand.Resources{CPU: 16000, Memory: 64 << 30, Pods: 110}, Labels: map[string]string{"zone": "b", "disk": "ssd"}, Taints: []ondemand.Taint{{Key: "gpu", Value: "yes", Effect: "NoSchedule"}}}
	if f := facts(); !reflect.DeepEqual(f.Stated, want) {
		t.Errorf("shape by the annotations: %+v, want %+v", f.Stated, want)
	}
	for annotation, wrong := range map[string]string{machineapi.CapacityCPUAnnotation: "x", machineapi.CapacityTaintsAnnotation: "gpu", machineapi.MinSizeAnnotation: "4"} {
		before := d.Annotations[annotation]
		if d.Annotations[annotation] = wrong; !strings.Contains(facts().Problem, annotation) {
			t.Errorf("%s=%s causes no problem: %+v", annotation, wrong, facts())
		}
		d.Annotations[annotation] = before
	}
}

// TestDemandPod checks which pods wait for a machine, and on Nodes with which labels they can run.
func TestDemandPod(t *testing.T) {
	selective := pod("a", "", "1", func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{"zone": "a"}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd", "nvme"}}}},
		}}}}
	})
	got, waits := demandPod(&selective)
	if !waits || got.Name != "shop/a" || got.CPU != 1000 || got.Memory != 1<<30 || got.Pods != 1 || !got.Since.Equal(demandStart.Add(-time.Minute)) {
		t.Fatalf("%+v, %t", got, waits)
	}
	for _, c := range []struct {
		labels map[string]string
		want   bool
	}{{map[string]string{"zone": "a", "disk": "ssd"}, true}, {map[string]string{"zone": "b", "disk": "ssd"}, false}, {map[string]string{"zone": "a"}, false}} {
		if got.Selectors[0](c.labels) != c.want {
			t.Errorf("the pod can run on a Node with labels %v: %t, want %t", c.labels, !c.want, c.want)
		}
	}
	for name, change := range map[string]func(*corev1.Pod){
		"is deleted":       func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: demandStart} },
		"is gated":         func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated },
		"has no condition": func(p *corev1.Pod) { p.Status.Conditions = nil },
		"was scheduled":    func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue },
	} {
		p := pod("a", "", "1", change)
		if _, waits := demandPod(&p); waits {
			t.Errorf("a pod that %s waits for a machine", name)
		}
	}
}

// TestCallHost checks that a machine is not switched off or on if its OrlopHost has changed since
// the decision, for example because a MachineSet has claimed the host. The machine is then only
// read.
func TestCallHost(t *testing.T) {
	for _, c := range []struct {
		answer string
		action fence.Action
		want   string
	}{
		{`{"spec":{"fingerprint":"f"}}`, fence.TurnOn, "GET h"},
		{`{"spec":{"fingerprint":"f","standby":{"phase":"SwitchOn","since":null}}}`, fence.TurnOff, "GET h"},
		{`{}`, fence.Read, ""},
	} {
		acts, got := requests(t, c.answer)
		client := &controller{switches: power.New(t.Context(), fake.NewClientset(), func() {}), inventoryLoop: inventoryLoop{later: acts, reads: fake.NewClientset()}}
		h := &machineapi.OrlopHost{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: machineapi.OrlopHostSpec{Fingerprint: "f"}}
		if err := client.callHost(t.Context(), hosts.Call{Host: h, Action: c.action}); err != nil {
			t.Error(err)
		}
		if now := strings.TrimSpace(strings.Join(got(), " ")); now != c.want {
			t.Errorf("%q, want %q", now, c.want)
		}
	}
}

// TestHostChanges checks which fields of an OrlopHost each kind of change writes. A field without a
// value is written as null, because a merge patch would otherwise retain its former value.
func TestHostChanges(t *testing.T) {
	acts, got := requests(t, "{}")
	h := &machineapi.OrlopHost{ObjectMeta: metav1.ObjectMeta{Name: "h", ResourceVersion: "7", Labels: map[string]string{"rack": "7"}}, Spec: machineapi.OrlopHostSpec{
		Fingerprint: "f", Power: &machineapi.MachinePower{Secret: "s"}, Standby: &machineapi.HostStandby{Phase: "SwitchOn", MachineSet: "rack"},
	}}
	const head = `PATCH h {"metadata":{"resourceVersion":"7","uid":""},"spec":{`
	const standby = `"standby":{"erasure":null,"machineSet":"rack","phase":"SwitchOn","since":null}`
	for _, verb := range []hosts.Verb{hosts.Power, hosts.Equip} {
		if err := acts.doHost(t.Context(), hosts.Change{Verb: verb, Object: h}); err != nil {
			t.Error(err)
		}
	}
	for _, verb := range []claims.Verb{"order power-on", "write claim", "return"} {
		if err := acts.doClaim(t.Context(), claims.Change{Verb: verb, Object: h}); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		head + standby + `}}`,
		`PATCH h {"metadata":{"labels":{"rack":"7"},"resourceVersion":"7","uid":""},"spec":{"power":{"secret":"s"},` + standby + `}}`,
		head + standby + `}}`,
		head + `"claim":null,` + standby + `}}`,
		head + `"approval":null,"claim":null,` + standby + `}}`,
	}
	if lines := got(); !slices.Equal(lines, want) {
		t.Errorf("the requests are\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

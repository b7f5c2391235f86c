package machines

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/machines/power"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
)

// world is a cluster in memory. The commands of a script change its objects, as machines and
// operators do.
type world struct {
	t *testing.T
	Snapshot
	uid int
}

func newWorld(t *testing.T) *world {
	return &world{t: t, Snapshot: Snapshot{
		Settings: Settings{
			Name: "orlop", Host: "10.0.0.10", Port: 6443, Pods: []string{"10.244.0.0/16"}, Services: []string{"10.96.0.0/12"}, Domain: "cluster.local",
			ControlPlanes: []netip.Addr{netip.MustParseAddr("10.0.0.11")}, Own: "c1",
		},
		Now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
	}}
}

// node adds a ready Node.
func (w *world) node(name, ip string) {
	w.Nodes = append(w.Nodes, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}},
			NodeInfo:  corev1.NodeSystemInfo{KubeletVersion: "v1.37.2"}, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	})
}

// apply performs a change, as the API server does.
func (w *world) apply(c Change) {
	w.t.Helper()
	w.uid++
	object, err := meta.Accessor(c.Object)
	if err != nil {
		w.t.Fatal(err)
	}
	if c.Verb == Create {
		object.SetUID(types.UID(fmt.Sprintf("u%d", w.uid)))
		object.SetGeneration(1)
	}
	if c.Verb == Permit || c.Verb == Repair || c.Verb == Fence {
		object.SetGeneration(object.GetGeneration() + 1)
	}
	same := func(o metav1.Object) bool { return o.GetName() == object.GetName() }
	switch o := c.Object.(type) {
	case *clusterv1.Cluster:
		w.Cluster = o
	case *machineapi.OrlopCluster:
		w.OrlopCluster = o
	case *controlplane.OrlopControlPlane:
		w.ControlPlane = o
	case *clusterv1.Machine:
		w.Machines = append(slices.DeleteFunc(slices.Clone(w.Machines), func(m *clusterv1.Machine) bool { return same(m) }), o)
	case *machineapi.OrlopMachine:
		if field := ownField(c.Verb, o); field != nil {
			o = w.patched(o, field)
		}
		w.Own = append(slices.DeleteFunc(slices.Clone(w.Own), func(m *machineapi.OrlopMachine) bool { return same(m) }), o)
	case *batchv1.Job:
		w.Jobs = append(w.Jobs, o)
	case *clusterv1.MachineHealthCheck:
		w.Checks = append(slices.DeleteFunc(slices.Clone(w.Checks), func(m *clusterv1.MachineHealthCheck) bool { return same(m) }), o)
	case *corev1.Node:
		w.Nodes = append(slices.DeleteFunc(slices.Clone(w.Nodes), func(n *corev1.Node) bool { return same(n) }), o)
	default:
		w.t.Fatalf("%T: unknown object", o)
	}
}

// patched applies, to the stored OrlopMachine, the merge patch of its specification that the
// controllers send, and returns the result.
func (w *world) patched(o *machineapi.OrlopMachine, spec map[string]any) *machineapi.OrlopMachine {
	w.t.Helper()
	decode := func(from, into any) {
		raw, err := json.Marshal(from)
		if err == nil {
			err = json.Unmarshal(raw, into)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	var stored, patch map[string]any
	decode(find(w.t, w.Own, o.Name), &stored)
	decode(map[string]any{"metadata": map[string]any{"generation": o.Generation}, "spec": spec}, &patch)
	merge(stored, patch)
	out := &machineapi.OrlopMachine{}
	decode(stored, out)
	return out
}

// merge applies a JSON merge patch (RFC 7396).
func merge(object, patch map[string]any) {
	for key, value := range patch {
		child, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(object, key)
		case isObject:
			if _, there := object[key].(map[string]any); !there {
				object[key] = map[string]any{}
			}
			merge(object[key].(map[string]any), child)
		default:
			object[key] = value
		}
	}
}

func (w *world) plan() Result {
	w.t.Helper()
	r, err := Plan(w.Snapshot)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// settle calls Plan and performs its changes until there are none. It returns a line for each
// change, a line for each call of a power switch by the last Plan, and the summary.
func (w *world) settle() []string {
	w.t.Helper()
	var lines []string
	for range 10 {
		r := w.plan()
		if len(r.Changes) == 0 {
			for _, call := range r.Calls {
				lines = append(lines, fmt.Sprintf("switch %s %s: %s", call.machine, call.uuid, call.action))
			}
			return append(lines, r.Summary)
		}
		for _, c := range r.Changes {
			w.apply(c)
			lines = append(lines, line(c))
		}
	}
	w.t.Fatalf("changes remain after ten passes: %s", strings.Join(lines, "\n"))
	return nil
}

// line returns a change as a line of text: the verb, the object and its important fields.
func line(c Change) string {
	text := c.String()
	switch o := c.Object.(type) {
	case *clusterv1.Machine:
		if c.Verb == Status {
			text += ": " + o.Status.Phase + conditions(o.Status.Conditions, clusterv1.MachineReadyCondition, clusterv1.MachineUpToDateCondition, clusterv1.MachineUpdatingCondition,
				clusterv1.MachineHealthCheckSucceededCondition, clusterv1.MachineOwnerRemediatedCondition, machineapi.ConditionFenced)
		}
	case *machineapi.OrlopMachine:
		if p := o.Spec.Permit; c.Verb == Permit && p != nil {
			text += fmt.Sprintf(": %s %s until %s, from %v", p.Release.Version, p.Release.Image, p.Expires.UTC().Format("15:04:05"), p.Peers)
		} else if c.Verb == Permit {
			text += ": none"
		}
		if p := o.Spec.Repair; c.Verb == Repair && p != nil {
			text += strings.TrimSpace(fmt.Sprintf(": %s, attempt %d, at %s %s", p.Step, p.Attempt, p.Given.UTC().Format("15:04:05"), p.Phase))
		} else if c.Verb == Repair {
			text += ": none"
		}
		if f := o.Spec.Fence; c.Verb == Fence && f != nil {
			text += strings.TrimSpace(fmt.Sprintf(": %s since %s, boot %s %s", f.Phase, f.Since.UTC().Format("15:04:05"), f.BootID, f.StayOff))
		} else if c.Verb == Fence {
			text += ": none"
		}
	case *clusterv1.MachineHealthCheck:
		text += fmt.Sprintf(": %d of %d healthy, %d may be repaired", *o.Status.CurrentHealthy, *o.Status.ExpectedMachines, *o.Status.RemediationsAllowed) + conditions(o.Status.Conditions, clusterv1.MachineHealthCheckRemediationAllowedCondition)
	case *machineapi.OrlopCluster:
		if c.Verb == Status {
			text += fmt.Sprintf(": %d of %d up to date", o.Status.UpToDate, o.Status.Machines) + conditions(o.Status.Conditions, conditionRollingOut)
		}
	case *batchv1.Job:
		text = fmt.Sprintf("%s Job of gate %s with image %s", c.Verb, o.Labels[gateLabel], o.Spec.Template.Spec.Containers[0].Image)
	case *corev1.Node:
		if text += ": " + o.Spec.ProviderID; c.Verb == Taint {
			text = fmt.Sprintf("%s: %v", c, o.Spec.Taints)
		}
	}
	return text
}

func conditions(all []metav1.Condition, kinds ...string) string {
	text := ""
	for _, k := range kinds {
		if c := meta.FindStatusCondition(all, k); c != nil {
			text += strings.TrimSuffix(fmt.Sprintf("; %s=%s %s: %s", k, c.Status, c.Reason, c.Message), ": ")
		}
	}
	return text
}

// TestScripts runs the scripts in testdata. These are the commands:
//
//	node NAME IP [plane]         adds a Node; with plane, of a control-plane machine
//	lost NAME                    deletes a Node
//	notready NAME                makes a Node unready
//	report NAME VERSION [WORD…]  the machine reports its release (kubernetes v1.37.2) and health;
//	                             words: unready, updating, refused, trial, leader,
//	                             failed=VERSION, kubernetes=VERSION
//	machine NAME VERSION         an operator sets Machine.spec.version, or removes it for -
//	release NAME VERSION [IMAGE] an operator sets OrlopMachine.spec.release, or removes it for -
//	cluster                      the input is the new specification of the OrlopCluster
//	gate NAME TYPE STATUS        a program sets a condition of a Machine
//	cronjob NAME IMAGE           an operator creates a CronJob, or replaces it
//	jobs complete|failed         all Jobs end with this result
//	jobs foreign                 all Jobs belong to another program
//	jobs delete                  an operator deletes all Jobs
//	drain NAME PHASE             the machine reports a drain for a reboot
//	label NAME KEY=VALUE         an operator labels a Machine
//	annotate NAME KEY            an operator annotates a Machine; -KEY removes the annotation
//	check NAME                   an operator applies a MachineHealthCheck with the input
//	condition NODE TYPE STATUS   a condition of a Node changes now
//	answer NAME REASON           the machine refuses the order of its repair
//	power NAME SECRET            an operator sets OrlopMachine.spec.power
//	switch NAME POWER [PROBLEM]  the power switch of the machine reports on, off or unclear
//	access NAME REASON           the controllers cannot use the power switch of the machine
//	pods NAME NUMBER             the Node of the machine has this number of pods
//	lease NAME AGE               the kubelet renewed its Lease for the last time AGE ago
//	boot NAME ID                 the kubelet reports another boot ID
//	hardware NAME UUID           the kubelet reports another UUID of its hardware
//	wait DURATION                the time passes
//	settle                       Plan runs until it has no changes; the output is all changes,
//	                             calls of power switches, and the summary
//	show KIND NAME               the output is an object
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.t = t
			var args []string
			for _, a := range d.CmdArgs {
				args = append(args, a.String())
			}
			return w.command(d, args)
		})
	})
}

func (w *world) command(d *datadriven.TestData, args []string) string {
	switch d.Cmd {
	case "node":
		w.node(args[0], args[1])
		if len(args) > 2 {
			w.Nodes[len(w.Nodes)-1].Labels = map[string]string{bootstrap.ControlPlaneKey: ""}
		}
	case "lost":
		w.Nodes = slices.DeleteFunc(w.Nodes, func(n *corev1.Node) bool { return n.Name == args[0] })
	case "notready":
		find(w.t, w.Nodes, args[0]).Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status."}
	case "report":
		w.report(args)
	case "machine":
		m := find(w.t, w.Machines, args[0])
		m.Spec.Version, m.Generation = strings.TrimPrefix(args[1], "-"), m.Generation+1
	case "release":
		m := find(w.t, w.Own, args[0])
		m.Generation++
		if m.Spec.Release = nil; args[1] != "-" {
			m.Spec.Release = &machineapi.ReleaseReference{Version: args[1], Image: strings.Join(args[2:], "")}
		}
	case "cluster":
		spec := machineapi.OrlopClusterSpec{}
		if err := yaml.UnmarshalStrict([]byte(d.Input), &spec); err != nil {
			w.t.Fatal(err)
		}
		w.OrlopCluster.Spec, w.OrlopCluster.Generation = spec, w.OrlopCluster.Generation+1
	case "gate":
		m := find(w.t, w.Machines, args[0])
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: args[1], Status: metav1.ConditionStatus(args[2]), Reason: "Tested", Message: "the smoke test says " + args[2]})
	case "cronjob":
		w.cronJob(args[0], args[1])
	case "jobs":
		w.jobs(args[0])
	case "drain":
		find(w.t, w.Own, args[0]).Status.Drain = &machineapi.DrainStatus{Operation: "reboot", Policy: "respect", Phase: args[1]}
	case "label":
		key, value, _ := strings.Cut(args[1], "=")
		find(w.t, w.Machines, args[0]).Labels[key] = value
	case "annotate":
		m := find(w.t, w.Machines, args[0])
		key, removed := strings.CutPrefix(args[1], "-")
		if metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, ""); removed {
			delete(m.Annotations, key)
		}
	case "check":
		w.check(args[0], d.Input)
	case "condition":
		n := find(w.t, w.Nodes, args[0])
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return string(c.Type) == args[1] })
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(args[1]), Status: corev1.ConditionStatus(args[2]), LastTransitionTime: metav1.NewTime(w.Now)})
	case "answer":
		m := find(w.t, w.Own, args[0])
		m.Status.Repair = &machineapi.RepairStatus{Step: m.Spec.Repair.Step, Given: m.Spec.Repair.Given, Phase: machineapi.RepairRefused, Message: strings.Join(args[1:], " ")}
	case "power":
		find(w.t, w.Own, args[0]).Spec.Power = &machineapi.MachinePower{Secret: args[1]}
	case "switch", "access", "pods", "lease":
		w.facts(d.Cmd, args)
	case "boot":
		n := find(w.t, w.Nodes, args[0])
		n.Status.NodeInfo.BootID, n.Status.NodeInfo.SystemUUID = args[1], "uuid-of-"+args[0]
	case "hardware":
		find(w.t, w.Nodes, args[0]).Status.NodeInfo.SystemUUID = args[1]
	case "wait":
		length, err := time.ParseDuration(args[0])
		if err != nil {
			w.t.Fatal(err)
		}
		w.Now = w.Now.Add(length)
	case "settle":
		return strings.Join(w.settle(), "\n")
	case "show":
		return w.show(args[0], args[1])
	default:
		w.t.Fatalf("unknown command %s", d.Cmd)
	}
	return ""
}

// facts performs a command that changes the facts about the power switch or the Node of a machine.
func (w *world) facts(command string, args []string) {
	if w.Power == nil {
		w.Power = map[string]power.Facts{}
	}
	f := w.Power[args[0]]
	switch command {
	case "switch":
		f.Switch = fence.Switch{Reading: fence.Reading{Power: fence.Power(args[1]), At: w.Now, Problem: strings.Join(args[2:], " ")}}
	case "access":
		f.Switch = fence.Switch{Access: strings.Join(args[1:], " ")}
	case "pods":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			w.t.Fatal(err)
		}
		f.Pods = fence.Pods{Read: true, Left: n}
	case "lease":
		age, err := time.ParseDuration(args[1])
		if err != nil {
			w.t.Fatal(err)
		}
		renewed := metav1.NewMicroTime(w.Now.Add(-age))
		if w.Leases == nil {
			w.Leases = map[string]*coordinationv1.Lease{}
		}
		w.Leases[args[0]] = &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
	}
	w.Power[args[0]] = f
}

// check creates a MachineHealthCheck, or replaces it.
func (w *world) check(name, spec string) {
	c := &clusterv1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: machineapi.Namespace, Generation: 1}}
	if err := yaml.UnmarshalStrict([]byte(spec), &c.Spec); err != nil {
		w.t.Fatal(err)
	}
	w.Checks = append(slices.DeleteFunc(w.Checks, func(c *clusterv1.MachineHealthCheck) bool { return c.Name == name }), c)
}

// cronJob creates or replaces a CronJob.
func (w *world) cronJob(name, image string) {
	c := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: machineapi.Namespace}}
	c.Spec.JobTemplate.Spec.Template.Spec.Containers = []corev1.Container{{Name: "test", Image: image}}
	w.CronJobs = append(slices.DeleteFunc(w.CronJobs, func(c *batchv1.CronJob) bool { return c.Name == name }), c)
}

// jobs performs the command "jobs": it changes or deletes all Jobs.
func (w *world) jobs(how string) {
	if how == "delete" {
		w.Jobs = nil
	}
	for _, j := range w.Jobs {
		switch how {
		case "complete":
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		case "failed":
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Message: "the shop does not answer"}}
		case "foreign":
			j.OwnerReferences = nil
		default:
			w.t.Fatalf("jobs %s: unknown", how)
		}
	}
}

// report replaces the status of an OrlopMachine, as the machine does.
func (w *world) report(args []string) {
	m := find(w.t, w.Own, args[0])
	status := machineapi.OrlopMachineStatus{Release: &machineapi.RunningRelease{Version: args[1], Kubernetes: "v1.37.2"}}
	ready, updating := metav1.Condition{Type: machineapi.ConditionReady, Status: metav1.ConditionTrue, Reason: "Healthy"}, metav1.ConditionFalse
	reason, message := "Reported", ""
	for _, word := range args[2:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "unready":
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Unhealthy", "etcd has no quorum"
		case "updating":
			updating = metav1.ConditionTrue
		case "refused":
			reason, message = machineapi.ReasonRefused, "drain not complete within 5m0s: pod shop/web: must stay"
		case "trial":
			status.Release.OnTrial = true
		case "leader":
			status.EtcdLeader = true
		case "kubernetes":
			status.Release.Kubernetes = value
		case "failed":
			status.Failed = &machineapi.FailedRelease{Release: machineapi.ReleaseReference{Version: value}, Reason: "no pod sandbox starts"}
		default:
			w.t.Fatalf("unknown word %s", word)
		}
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: machineapi.ConditionUpdating, Status: updating, Reason: reason, Message: message})
	m.Status = status
}

func find[T metav1.Object](t *testing.T, all []T, name string) T {
	t.Helper()
	for _, o := range all {
		if o.GetName() == name {
			return o
		}
	}
	t.Fatalf("no object %s", name)
	panic("unreachable")
}

func (w *world) show(kind, name string) string {
	var object any
	switch kind {
	case "cluster":
		object = w.Cluster
	case "orlopcluster":
		object = w.OrlopCluster
	case "controlplane":
		object = w.ControlPlane
	case "machine":
		object = find(w.t, w.Machines, name)
	case "orlopmachine":
		object = find(w.t, w.Own, name)
	default:
		w.t.Fatalf("unknown kind %s", kind)
	}
	raw, err := json.Marshal(object)
	if err != nil {
		w.t.Fatal(err)
	}
	text, err := yaml.JSONToYAML(raw)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// TestStopsAnywhere adopts a cluster and stops after each possible number of changes. It checks
// that the next passes make the remaining changes, and that the result is always the same.
func TestStopsAnywhere(t *testing.T) {
	build := func() *world {
		w := newWorld(t)
		w.node("c1", "10.0.0.11")
		w.node("w1", "10.0.0.21")
		w.Nodes[0].Labels = map[string]string{bootstrap.ControlPlaneKey: ""}
		return w
	}
	content := func(w *world) string {
		text := ""
		for _, kind := range []string{"cluster", "orlopcluster", "controlplane"} {
			text += w.show(kind, "")
		}
		for _, name := range []string{"c1", "w1"} {
			text += w.show("machine", name) + w.show("orlopmachine", name)
		}
		var lines []string
		for l := range strings.Lines(text) {
			if !strings.Contains(l, "uid:") {
				lines = append(lines, l)
			}
		}
		return strings.Join(lines, "")
	}
	whole := build()
	total := len(whole.settle())
	want := content(whole)
	for stop := range total {
		w := build()
		for done := 0; done < stop; {
			changes := w.plan().Changes
			for _, c := range changes[:min(len(changes), stop-done)] {
				w.apply(c)
				done++
			}
			if len(changes) == 0 {
				break
			}
		}
		w.settle()
		if got := content(w); got != want {
			t.Fatalf("after a stop at change %d:\n%s\nwant\n%s", stop, got, want)
		}
	}
}

// TestObjectsAreEncoded checks that encoding an object as JSON and decoding it again does not
// change it.
func TestObjectsAreEncoded(t *testing.T) {
	w := newWorld(t)
	w.node("c1", "10.0.0.11")
	w.settle()
	for _, o := range []runtime.Object{w.Cluster, w.OrlopCluster, w.ControlPlane, w.Machines[0], w.Own[0]} {
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		again := o.DeepCopyObject()
		if err := json.Unmarshal(raw, again); err != nil {
			t.Fatal(err)
		}
		if second, err := json.Marshal(again); err != nil || string(second) != string(raw) {
			t.Errorf("%T: %s\nbecomes\n%s (%v)", o, raw, second, err)
		}
	}
}

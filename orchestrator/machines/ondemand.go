package machines

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	podresources "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/machines/claims"
	"github.com/orlop-os/orlop/pkg/disruption/ondemand"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

const (
	// demandInterval is the shortest time between two decisions of power on demand, because each
	// reads the pods of all machines of its MachineDeployments.
	demandInterval = 15 * time.Second
	// demandTimeout bounds the reads of a decision.
	demandTimeout = 30 * time.Second
	// maxRemembered is the largest size of the annotation of a MachineSet, in bytes.
	maxRemembered = 16 << 10
)

// demand is the state of power on demand (docs/decisions/0126-power-on-demand.md).
type demand struct {
	memory   ondemand.Memory
	verdicts map[string]ondemand.Verdict // by the name of the MachineDeployment
	next     time.Time                   // no decision before
}

// passDemand scales the MachineDeployments for which an operator has chosen power on demand. It
// reads no pods if there is no such MachineDeployment.
func (c *controller) passDemand(ctx context.Context, s Snapshot) error {
	if c.deployments == nil || s.Cluster == nil || s.Now.Before(c.demand.next) {
		return nil
	}
	scaled := slices.DeleteFunc(component.Objects[*clusterv1.MachineDeployment](c.deployments), func(d *clusterv1.MachineDeployment) bool {
		return !claims.OnDemand(d) || d.DeletionTimestamp != nil || d.Spec.ClusterName != c.settings.Name || isPaused(d, s.Cluster)
	})
	if len(scaled) == 0 {
		c.demand = demand{}
		return nil
	}
	slices.SortFunc(scaled, func(a, b *clusterv1.MachineDeployment) int { return cmp.Compare(a.Name, b.Name) })
	world := ondemand.World{Now: s.Now}
	reading, cancel := context.WithTimeout(ctx, demandTimeout)
	defer cancel()
	var err error
	if world.Pods, err = c.unschedulable(reading); err != nil {
		return err
	}
	for _, d := range scaled {
		facts, err := c.demandFacts(reading, s, d)
		if err != nil {
			return err
		}
		world.Deployments = append(world.Deployments, facts)
	}
	memory, verdicts := c.demand.memory.Decide(world)
	c.demand = demand{memory, map[string]ondemand.Verdict{}, s.Now.Add(demandInterval)}
	var changes []demandChange
	for i, v := range verdicts {
		c.demand.verdicts[scaled[i].Name] = v
		changes = append(changes, demandChanges(scaled[i], s.Machines, world.Deployments[i], v)...)
		changes = append(changes, c.remember(scaled[i], v)...)
	}
	return perform(changes, func(change demandChange) error { return c.later.doDemand(ctx, change) })
}

// isPaused reports whether a MachineDeployment or its cluster is paused.
func isPaused(d *clusterv1.MachineDeployment, of *clusterv1.Cluster) bool {
	_, annotated := d.Annotations[clusterv1.PausedAnnotation]
	return annotated || ptr.Deref(d.Spec.Paused, false) || ptr.Deref(of.Spec.Paused, false)
}

// demandChange is a change that a decision of power on demand causes: the number of machines of a
// MachineDeployment, the mark of a Machine, or the annotation RememberedAnnotation of a MachineSet.
// The objects are those of the snapshot.
type demandChange struct {
	deployment *clusterv1.MachineDeployment
	replicas   int32
	machine    *clusterv1.Machine // set instead of deployment
	mark       *string            // nil removes the mark
	set        *clusterv1.MachineSet
	remembered string
}

// String returns the change and the name of the object.
func (d demandChange) String() string {
	switch {
	case d.machine != nil:
		return "mark " + describe(d.machine)
	case d.set != nil:
		return "annotate " + describe(d.set)
	}
	return fmt.Sprintf("scale %s to %d", describe(d.deployment), d.replicas)
}

// demandChanges returns the changes of a verdict.
func demandChanges(d *clusterv1.MachineDeployment, all []*clusterv1.Machine, facts ondemand.Deployment, v ondemand.Verdict) (changes []demandChange) {
	if facts.Problem == "" && v.Replicas != facts.Replicas {
		changes = append(changes, demandChange{deployment: d, replicas: int32(v.Replicas)})
	}
	for _, m := range all {
		switch {
		case slices.Contains(v.Mark, m.Name):
			changes = append(changes, demandChange{machine: m, mark: new(machineapi.MarkedOnDemand)})
		case slices.Contains(v.Unmark, m.Name):
			changes = append(changes, demandChange{machine: m})
		}
	}
	return changes
}

// doDemand performs a change. It fails with a conflict if the object has changed since, for example
// because an operator scales the MachineDeployment.
func (c *clients) doDemand(ctx context.Context, change demandChange) error {
	annotate := func(name string, value any) map[string]any {
		return map[string]any{"metadata": map[string]any{"annotations": map[string]any{name: value}}}
	}
	switch {
	case change.machine != nil:
		return patchObject(ctx, c.machines, change.machine, annotate(clusterv1.DeleteMachineAnnotation, change.mark))
	case change.set != nil:
		return patchObject(ctx, c.sets, change.set, annotate(machineapi.RememberedAnnotation, change.remembered))
	}
	patch, err := component.MergePatch(change.deployment, map[string]any{"spec": map[string]any{"replicas": change.replicas}})
	if err != nil {
		return err
	}
	// The controllers have only the right to change the number of machines of a MachineDeployment,
	// by its subresource scale.
	return c.scale(ctx, change.deployment.Name, patch)
}

// remembered is the content of the annotation RememberedAnnotation of a MachineSet.
type remembered struct {
	// Template identifies the template of the machine with the shape. After a change of the
	// template the shape is unknown.
	Template string          `json:"template,omitempty"`
	Shape    *ondemand.Shape `json:"shape,omitempty"`
	// Pods are the UIDs of pods for which additional machines did not help.
	Pods []string `json:"pods,omitempty"`
}

// recall returns what a MachineSet remembers, without a shape if its template has changed.
func (c *controller) recall(d *clusterv1.MachineDeployment, set *clusterv1.MachineSet) (r remembered) {
	if set == nil || json.Unmarshal([]byte(set.Annotations[machineapi.RememberedAnnotation]), &r) != nil {
		return remembered{}
	}
	if r.Template != c.templateOf(d) {
		r.Shape = nil
	}
	return r
}

// remember returns the change that stores the remembered values of a verdict, if they differ from
// the stored values.
func (c *controller) remember(d *clusterv1.MachineDeployment, v ondemand.Verdict) []demandChange {
	set := c.setOf(d)
	if set == nil || v.State == ondemand.Invalid {
		return nil
	}
	text, err := json.Marshal(remembered{c.templateOf(d), v.Last, v.Unhelped})
	if err != nil || len(text) > maxRemembered || string(text) == set.Annotations[machineapi.RememberedAnnotation] || v.Last == nil && v.Unhelped == nil {
		return nil
	}
	return []demandChange{{set: set, remembered: string(text)}}
}

// setOf returns the MachineSet of a MachineDeployment; nil if there is none.
func (c *controller) setOf(d *clusterv1.MachineDeployment) *clusterv1.MachineSet {
	if set := named(component.Objects[*clusterv1.MachineSet](c.sets), d.Name); set != nil && metav1.IsControlledBy(set, d) {
		return set
	}
	return nil
}

// templateOf identifies the present content of the template of a MachineDeployment; empty if there
// is no template.
func (c *controller) templateOf(d *clusterv1.MachineDeployment) string {
	t := named(component.Objects[*machineapi.OrlopMachineTemplate](c.templates), d.Spec.Template.Spec.InfrastructureRef.Name)
	if t == nil {
		return ""
	}
	sum := sha256.Sum256([]byte(t.Name + "\n" + t.Spec.Template.Spec.Match + "\n" + t.Spec.Template.Spec.Documents))
	return hex.EncodeToString(sum[:8])
}

// unschedulable reads the pods that the scheduler cannot place.
func (c *controller) unschedulable(ctx context.Context) ([]ondemand.Pod, error) {
	// The answer may come from the cache of the API server, because the pods must wait anyway.
	all, err := c.reads.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName=,status.phase=Pending"})
	if err != nil {
		return nil, fmt.Errorf("cannot read the pods without a Node: %w", err)
	}
	var pods []ondemand.Pod
	for i := range all.Items {
		if p, waits := demandPod(&all.Items[i]); waits {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// demandPod returns the facts about a pod that the scheduler cannot place; false for any other pod.
func demandPod(p *corev1.Pod) (out ondemand.Pod, waits bool) {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	if p.DeletionTimestamp != nil || p.Spec.NodeName != "" || i < 0 || p.Status.Conditions[i].Status != corev1.ConditionFalse || p.Status.Conditions[i].Reason != corev1.PodReasonUnschedulable {
		return out, false
	}
	out = ondemand.Pod{Name: p.Namespace + "/" + p.Name, UID: string(p.UID), Since: p.Status.Conditions[i].LastTransitionTime.Time, Resources: requestsOf(p)}
	required := nodeaffinity.GetRequiredNodeAffinity(p)
	out.Selectors = []ondemand.Selector{func(labels map[string]string) bool {
		match, err := required.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
		return err == nil && match
	}}
	for _, t := range p.Spec.Tolerations {
		out.Tolerations = append(out.Tolerations, ondemand.Toleration{Key: t.Key, Exists: t.Operator == corev1.TolerationOpExists, Value: t.Value, Effect: string(t.Effect)})
	}
	return out, true
}

// requestsOf returns the requests of a pod.
func requestsOf(p *corev1.Pod) ondemand.Resources {
	r := resourcesOf(podresources.PodRequests(p, podresources.PodResourcesOptions{}))
	r.Pods = 1
	return r
}

func resourcesOf(l corev1.ResourceList) ondemand.Resources {
	return ondemand.Resources{CPU: l.Cpu().MilliValue(), Memory: l.Memory().Value(), Pods: l.Pods().Value()}
}

// demandFacts returns the facts about a MachineDeployment. It reads the pods of its Nodes.
func (c *controller) demandFacts(ctx context.Context, s Snapshot, d *clusterv1.MachineDeployment) (ondemand.Deployment, error) {
	out := ondemand.Deployment{Name: d.Name, Replicas: int(max(0, ptr.Deref(d.Spec.Replicas, 1)))}
	var err error
	if out.Min, out.Max, err = bounds(d); err != nil {
		out.Problem = err.Error()
		return out, nil
	}
	if out.Stated, err = annotatedShape(d); err != nil {
		out.Problem = err.Error()
		return out, nil
	}
	set := c.setOf(d)
	known := c.recall(d, set)
	out.Last, out.Unhelped = known.Shape, known.Pods
	out.Estimated = hostShape(claims.Smallest(d, component.Objects[*machineapi.OrlopMachineTemplate](c.templates), component.Objects[*machineapi.OrlopHost](c.hosts)))
	for _, m := range s.Machines {
		switch {
		case set == nil || !metav1.IsControlledBy(m, set):
		case m.DeletionTimestamp != nil:
			out.IsLeaving = true
		default:
			facts, err := c.demandMachine(ctx, s, m)
			if err != nil {
				return out, err
			}
			out.Machines = append(out.Machines, facts)
		}
	}
	return out, nil
}

// demandMachine returns the facts about a Machine. It reads the pods of its Node.
func (c *controller) demandMachine(ctx context.Context, s Snapshot, m *clusterv1.Machine) (ondemand.Machine, error) {
	node := named(s.Nodes, m.Name)
	out := ondemand.Machine{Name: m.Name, Kept: isKept(m, node) || !claims.IsRemovable(m, named(s.Own, m.Name))}
	if mark, marked := m.Annotations[clusterv1.DeleteMachineAnnotation]; marked {
		out.Marked, out.Chosen = mark == machineapi.MarkedOnDemand, mark != machineapi.MarkedOnDemand
	}
	if node == nil || nodeReady(node).Status != corev1.ConditionTrue {
		return out, nil
	}
	pods, err := c.podsOf(ctx, m.Name)
	if err != nil {
		return out, err
	}
	out.Joined, out.Empty = node.CreationTimestamp.Time, pods.empty
	out.Whole, out.Room = shapeOf(node, pods.system, configured), shapeOf(node, pods.all, anyTaint)
	delete(out.Whole.Labels, corev1.LabelHostname) // the next machine has another name
	return out, nil
}

// isKept reports whether an operator has excluded a machine from removal.
func isKept(m *clusterv1.Machine, node *corev1.Node) bool {
	return m.Annotations[machineapi.KeepAnnotation] == "true" || node != nil && node.Annotations[machineapi.KeepAnnotation] == "true"
}

// bounds returns the minimum and the maximum in the annotations of a MachineDeployment.
func bounds(d *clusterv1.MachineDeployment) (least, most int, err error) {
	for _, b := range []struct {
		annotation string
		to         *int
	}{{machineapi.MinSizeAnnotation, &least}, {machineapi.MaxSizeAnnotation, &most}} {
		text, there := d.Annotations[b.annotation]
		n, err := strconv.ParseUint(text, 10, 10)
		if err != nil {
			return 0, 0, fmt.Errorf("annotation %s is no number from 0 to 1023 (present: %t): set both annotations, or remove both", b.annotation, there)
		}
		*b.to = int(n)
	}
	if least > most {
		return 0, 0, fmt.Errorf("annotation %s is %d, and the maximum is %d: lower it", machineapi.MinSizeAnnotation, least, most)
	}
	return least, most, nil
}

// annotatedShape returns the shape of a machine in the annotations of a MachineDeployment; nil if
// they do not state processors and memory.
func annotatedShape(d *clusterv1.MachineDeployment) (*ondemand.Shape, error) {
	cpu, memory := d.Annotations[machineapi.CapacityCPUAnnotation], d.Annotations[machineapi.CapacityMemoryAnnotation]
	if cpu == "" && memory == "" {
		return nil, nil
	}
	shape := &ondemand.Shape{Labels: map[string]string{}}
	list := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(maxPods, resource.DecimalSI)}
	for annotation, name := range map[string]corev1.ResourceName{machineapi.CapacityCPUAnnotation: corev1.ResourceCPU, machineapi.CapacityMemoryAnnotation: corev1.ResourceMemory} {
		q, err := resource.ParseQuantity(d.Annotations[annotation])
		if err != nil {
			return nil, fmt.Errorf("annotation %s is no quantity: set the annotations for processors and for memory", annotation)
		}
		list[name] = q
	}
	shape.Resources = resourcesOf(list)
	for _, text := range split(d.Annotations[machineapi.CapacityLabelsAnnotation]) {
		key, value, _ := strings.Cut(text, "=")
		shape.Labels[key] = value
	}
	for _, text := range split(d.Annotations[machineapi.CapacityTaintsAnnotation]) {
		rest, effect, found := strings.Cut(text, ":")
		if !found {
			return nil, fmt.Errorf("annotation %s: %q is not KEY=VALUE:EFFECT: correct it", machineapi.CapacityTaintsAnnotation, text)
		}
		key, value, _ := strings.Cut(rest, "=")
		if effect != string(corev1.TaintEffectPreferNoSchedule) {
			shape.Taints = append(shape.Taints, ondemand.Taint{Key: key, Value: value, Effect: effect})
		}
	}
	return shape, nil
}

// split returns the elements of a list with commas, without empty elements.
func split(list string) []string {
	return slices.DeleteFunc(strings.Split(list, ","), func(text string) bool { return text == "" })
}

// maxPods is the default limit of pods of a Node.
const maxPods = 110

// shapeOf returns what a Node can take besides pods with these requests. It has the taints for
// which use returns true.
func shapeOf(n *corev1.Node, requests ondemand.Resources, use func(corev1.Taint) bool) *ondemand.Shape {
	free := resourcesOf(n.Status.Allocatable)
	shape := &ondemand.Shape{Labels: map[string]string{}, Resources: ondemand.Resources{CPU: free.CPU - requests.CPU, Memory: free.Memory - requests.Memory, Pods: free.Pods - requests.Pods}}
	maps.Copy(shape.Labels, n.Labels)
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && use(t) {
			shape.Taints = append(shape.Taints, ondemand.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
		}
	}
	return shape
}

// configured reports whether a taint describes the machine. Taints of Kubernetes itself describe
// the present state of its Node, for example that it is cordoned.
func configured(t corev1.Taint) bool { return !strings.HasPrefix(t.Key, "node.kubernetes.io/") }

func anyTaint(corev1.Taint) bool { return true }

// hostShape returns the shape of the machine of a host; nil without a host. It deducts an estimate
// for the system and for DaemonSets: half a processor, and a tenth of the memory or at least 512
// MiB.
func hostShape(i *machineapi.HostInventory) *ondemand.Shape {
	if i == nil {
		return nil
	}
	memory := i.MemoryMiB - max(i.MemoryMiB/10, 512)
	return &ondemand.Shape{Labels: map[string]string{}, Resources: ondemand.Resources{CPU: int64(i.CPUs)*1000 - 500, Memory: memory << 20, Pods: maxPods}}
}

// nodePods describes the pods of a Node that have not ended. empty means that the Node has only
// pods that each machine runs (DaemonSets, static pods). system has the requests of such pods, and
// all has the requests of all pods.
type nodePods struct {
	empty       bool
	system, all ondemand.Resources
}

// podsOf reads the pods of a Node.
func (c *controller) podsOf(ctx context.Context, node string) (out nodePods, err error) {
	all, err := c.reads.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return out, fmt.Errorf("cannot read the pods of Node %s: %w", node, err)
	}
	out.empty = true
	for i := range all.Items {
		p := &all.Items[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		r := requestsOf(p)
		out.all = plus(out.all, r)
		if ofSystem(p) {
			out.system = plus(out.system, r)
		} else {
			out.empty = false
		}
	}
	return out, nil
}

func plus(a, b ondemand.Resources) ondemand.Resources {
	return ondemand.Resources{CPU: a.CPU + b.CPU, Memory: a.Memory + b.Memory, Pods: a.Pods + b.Pods}
}

// ofSystem reports whether each machine runs a pod: it is a static pod, or a pod of a DaemonSet.
func ofSystem(p *corev1.Pod) bool {
	if _, static := p.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return true
	}
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet"
}

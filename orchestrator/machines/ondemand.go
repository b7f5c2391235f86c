package machines

import (
	"cmp"
	"context"
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

// demandInterval is the shortest time between two decisions of power on demand, because each reads
// the pods of all machines of its MachineDeployments.
const demandInterval = 15 * time.Second

// demand is the state of power on demand (docs/decisions/0126-power-on-demand.md).
type demand struct {
	memory   ondemand.Memory
	verdicts map[string]ondemand.Verdict // by the name of the MachineDeployment
	next     time.Time                   // no decision before
}

// passDemand scales the MachineDeployments that have a minimum and a maximum. It reads no pods if
// there is no such MachineDeployment.
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
	var err error
	if world.Pods, err = c.unschedulable(ctx); err != nil {
		return err
	}
	for _, d := range scaled {
		facts, err := c.demandFacts(ctx, s, d)
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
	}
	return perform(changes, func(change demandChange) error { return c.acts.doDemand(ctx, change) })
}

// isPaused reports whether a MachineDeployment or its cluster is paused.
func isPaused(d *clusterv1.MachineDeployment, of *clusterv1.Cluster) bool {
	_, annotated := d.Annotations[clusterv1.PausedAnnotation]
	return annotated || ptr.Deref(d.Spec.Paused, false) || ptr.Deref(of.Spec.Paused, false)
}

// demandChange is a change of a decision of power on demand: the number of machines of a
// MachineDeployment, or the mark of a Machine. The object is that in the snapshot.
type demandChange struct {
	deployment *clusterv1.MachineDeployment
	replicas   int32
	machine    *clusterv1.Machine // set instead of deployment
	mark       *string            // nil removes the mark
}

// String returns the change and the name of the object.
func (d demandChange) String() string {
	if d.machine != nil {
		return "mark " + describe(d.machine)
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
		case v.Mark == m.Name:
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
	if change.machine != nil {
		return patchObject(ctx, c.machines, change.machine, map[string]any{"metadata": map[string]any{"annotations": map[string]any{clusterv1.DeleteMachineAnnotation: change.mark}}})
	}
	return patchObject(ctx, c.deployments, change.deployment, map[string]any{"spec": map[string]any{"replicas": change.replicas}})
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
	out = ondemand.Pod{Name: p.Namespace + "/" + p.Name, Since: p.Status.Conditions[i].LastTransitionTime.Time, Resources: requestsOf(p)}
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
	if out.Shape, err = annotatedShape(d); err != nil {
		out.Problem = err.Error()
		return out, nil
	}
	annotated := out.Shape != nil
	for _, m := range s.Machines {
		if m.Labels[clusterv1.MachineDeploymentNameLabel] != d.Name || m.Labels[clusterv1.MachineSetNameLabel] != d.Name {
			continue
		}
		if m.DeletionTimestamp != nil {
			out.IsLeaving = true
			continue
		}
		node := named(s.Nodes, m.Name)
		facts := ondemand.Machine{Name: m.Name, Kept: isKept(m, node)}
		if mark, marked := m.Annotations[clusterv1.DeleteMachineAnnotation]; marked {
			facts.Marked, facts.Chosen = mark == machineapi.MarkedOnDemand, mark != machineapi.MarkedOnDemand
		}
		if node != nil && nodeReady(node).Status == corev1.ConditionTrue {
			facts.Ready = true
			var system ondemand.Resources
			if facts.Empty, system, err = c.podsOf(ctx, m.Name); err != nil {
				return out, err
			}
			if out.Shape == nil || !annotated && cmp.Compare(node.Name, out.Shape.Labels[corev1.LabelHostname]) < 0 {
				out.Shape = shapeOf(node, system)
			}
		}
		out.Machines = append(out.Machines, facts)
	}
	if out.Shape == nil {
		i := claims.Smallest(d, component.Objects[*machineapi.OrlopMachineTemplate](c.templates), component.Objects[*machineapi.OrlopHost](c.hosts))
		out.Shape = hostShape(i)
	}
	if out.Shape != nil {
		delete(out.Shape.Labels, corev1.LabelHostname) // the next machine has another name
	}
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

// shapeOf returns the shape of the Node of a present machine. system are the requests of its pods
// that each machine runs.
func shapeOf(n *corev1.Node, system ondemand.Resources) *ondemand.Shape {
	free := resourcesOf(n.Status.Allocatable)
	shape := &ondemand.Shape{Labels: maps.Clone(n.Labels), Resources: ondemand.Resources{CPU: free.CPU - system.CPU, Memory: free.Memory - system.Memory, Pods: free.Pods - system.Pods}}
	if shape.Labels == nil {
		shape.Labels = map[string]string{}
	}
	shape.Labels[corev1.LabelHostname] = n.Name
	for _, t := range n.Spec.Taints {
		// Taints of Kubernetes itself describe the present state of this Node.
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			shape.Taints = append(shape.Taints, ondemand.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
		}
	}
	return shape
}

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

// podsOf reads the pods of a Node. empty means that the Node has only pods that each machine runs
// (DaemonSets, static pods), and pods that have ended. system are the requests of the former.
func (c *controller) podsOf(ctx context.Context, node string) (empty bool, system ondemand.Resources, err error) {
	all, err := c.reads.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return false, system, fmt.Errorf("cannot read the pods of Node %s: %w", node, err)
	}
	empty = true
	for i := range all.Items {
		p := &all.Items[i]
		switch {
		case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case ofSystem(p):
			r := requestsOf(p)
			system = ondemand.Resources{CPU: system.CPU + r.CPU, Memory: system.Memory + r.Memory, Pods: system.Pods + 1}
		default:
			empty = false
		}
	}
	return empty, system, nil
}

// ofSystem reports whether each machine runs a pod: it is a static pod, or a pod of a DaemonSet.
func ofSystem(p *corev1.Pod) bool {
	if _, static := p.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return true
	}
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet"
}

package addons

import (
	"cmp"
	"fmt"
	"slices"
)

// Stage is objects that are applied together, when those of all stages before are as they should
// be.
type Stage struct {
	place
	Objects []Object
}

// place is where an object stands among the others.
type place struct {
	part   part
	weight int // of hooks; each weight is a stage by itself
}

// part is a part of an add-on, in the order in which they are applied.
type part int

const (
	namespaces part = iota
	definitions
	hooksBefore
	everythingElse
	hooksAfter
)

func (p place) String() string {
	switch p.part {
	case namespaces:
		return "namespaces"
	case definitions:
		return "custom resource definitions"
	case hooksBefore:
		return fmt.Sprintf("hooks before, weight %d", p.weight)
	case hooksAfter:
		return fmt.Sprintf("hooks after, weight %d", p.weight)
	}
	return "objects"
}

// Stages are the objects of an add-on in the order in which they are applied. With hooks those of
// Helm's charts are among them, for the event, which is install or upgrade; without, they have run.
func Stages(objects []Object, hooks bool, event string) []Stage {
	places := map[key]place{}
	var all []Object
	for _, o := range objects {
		p, applied := placeOf(o, event)
		if applied && (hooks || len(o.Hook.events) == 0) {
			places[o.key()] = p
			all = append(all, o)
		}
	}
	slices.SortStableFunc(all, func(x, y Object) int {
		p, q := places[x.key()], places[y.key()]
		return cmp.Or(cmp.Compare(p.part, q.part), cmp.Compare(p.weight, q.weight), cmp.Compare(rank(x.Item), rank(y.Item)), cmp.Compare(x.String(), y.String()))
	})
	var stages []Stage
	for _, o := range all {
		if p := places[o.key()]; len(stages) == 0 || p != stages[len(stages)-1].place {
			stages = append(stages, Stage{place: p})
		}
		s := &stages[len(stages)-1]
		s.Objects = append(s.Objects, o)
	}
	return stages
}

func placeOf(o Object, event string) (p place, applied bool) {
	switch {
	case slices.Contains(o.Hook.events, "pre-"+event):
		return place{hooksBefore, o.Hook.weight}, true
	case slices.Contains(o.Hook.events, "post-"+event):
		return place{hooksAfter, o.Hook.weight}, true
	case len(o.Hook.events) > 0:
		return place{}, false
	case o.Group == "" && o.Kind == "Namespace":
		return place{part: namespaces}, true
	case isCRD(o.Body.GroupVersionKind().GroupKind()):
		return place{part: definitions}, true
	}
	return place{part: everythingElse}, true
}

// order is what objects of one stage are sorted by: what others refer to comes first.
var order = []string{
	"Namespace", "PriorityClass", "ResourceQuota", "LimitRange", "NetworkPolicy", "ServiceAccount", "Secret", "ConfigMap", "StorageClass", "PersistentVolume",
	"PersistentVolumeClaim", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Service", "DaemonSet", "Pod", "ReplicaSet", "Deployment",
	"StatefulSet", "Job", "CronJob", "PodDisruptionBudget", "HorizontalPodAutoscaler", "IngressClass", "Ingress", "APIService",
}

// rank is an item's place in order. Custom resources come after everything that serves them,
// webhooks after what they are about.
func rank(i Item) int {
	if at := slices.Index(order, i.Kind); at >= 0 {
		return at
	}
	if isWebhook(i) {
		return len(order) + 1
	}
	return len(order)
}

func isWebhook(i Item) bool { return i.Group == "admissionregistration.k8s.io" }

// Removal is the items in the order in which they are taken away: those of a step are gone before
// the next one begins. Custom resources go first, while what serves and finishes them is there;
// then webhooks and APIs, which without their servers would stand in the way; then the rest, in the
// reverse of the order in which they came; then the definitions.
func Removal(items []Item) [][]Item {
	const steps = 4
	step := func(i Item) int {
		switch {
		case isCRD(i.gvk().GroupKind()):
			return 3
		case isWebhook(i), i.Kind == "APIService":
			return 1
		case isCustom(i):
			return 0
		}
		return 2
	}
	sorted := slices.Clone(items)
	slices.SortStableFunc(sorted, func(x, y Item) int {
		return cmp.Or(cmp.Compare(step(x), step(y)), cmp.Compare(rank(y), rank(x)), cmp.Compare(y.String(), x.String()))
	})
	all := make([][]Item, 0, steps)
	for i, item := range sorted {
		if i == 0 || step(sorted[i-1]) != step(item) {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], item)
	}
	return all
}

// ToPrune is what is in the inventory and no longer wanted.
func ToPrune(inventory []Item, wanted []Object) []Item {
	keep := map[key]bool{}
	for _, o := range wanted {
		keep[o.key()] = true
	}
	var all []Item
	for _, i := range inventory {
		if !keep[i.key()] {
			all = append(all, i)
		}
	}
	return all
}

// Union is the inventory with what is wanted: what an object was before counts no more.
func Union(inventory []Item, wanted []Object) []Item {
	all := ToPrune(inventory, wanted)
	for _, o := range wanted {
		all = append(all, o.Item)
	}
	slices.SortFunc(all, func(x, y Item) int { return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.String(), y.String())) })
	return all
}

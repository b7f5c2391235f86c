package addons

import (
	"cmp"
	"fmt"
	"slices"
)

// Stage is a group of objects that are applied together, when the objects of all earlier stages are
// healthy.
type Stage struct {
	position
	Objects []Object
}

// position is the position of an object in the order of application.
type position struct {
	part   part
	weight int // of hooks; each weight is a separate stage
}

// part is a part of an add-on, in the order of application.
type part int

const (
	namespaces part = iota
	definitions
	hooksBefore
	everythingElse
	hooksAfter
)

func (p position) String() string {
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

// Stages returns the objects of an add-on in the order of application. If hooks is true, they
// include the Helm hooks for the event (install or upgrade); if it is false, these hooks have run
// already.
func Stages(objects []Object, hooks bool, event string) []Stage {
	places := map[key]position{}
	var all []Object
	for _, o := range objects {
		p, applied := positionOf(o, event)
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
		if p := places[o.key()]; len(stages) == 0 || p != stages[len(stages)-1].position {
			stages = append(stages, Stage{position: p})
		}
		s := &stages[len(stages)-1]
		s.Objects = append(s.Objects, o)
	}
	return stages
}

func positionOf(o Object, event string) (p position, applied bool) {
	switch {
	case slices.Contains(o.Hook.events, "pre-"+event):
		return position{hooksBefore, o.Hook.weight}, true
	case slices.Contains(o.Hook.events, "post-"+event):
		return position{hooksAfter, o.Hook.weight}, true
	case len(o.Hook.events) > 0:
		return position{}, false
	case o.Group == "" && o.Kind == "Namespace":
		return position{part: namespaces}, true
	case isCRD(o.Body.GroupVersionKind().GroupKind()):
		return position{part: definitions}, true
	}
	return position{part: everythingElse}, true
}

// order sorts the objects of a stage: objects to which others refer come first.
var order = []string{
	"Namespace", "PriorityClass", "ResourceQuota", "LimitRange", "NetworkPolicy", "ServiceAccount", "Secret", "ConfigMap", "StorageClass", "PersistentVolume",
	"PersistentVolumeClaim", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Service", "DaemonSet", "Pod", "ReplicaSet", "Deployment",
	"StatefulSet", "Job", "CronJob", "PodDisruptionBudget", "HorizontalPodAutoscaler", "IngressClass", "Ingress", "APIService",
}

// rank returns the position of an item in order. Other kinds, such as custom resources, follow the
// kinds in order, because objects of these run their servers. Webhooks come last, after the objects
// that they check.
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

// Removal returns the items in the order of deletion: the items of a step are gone before the next
// step begins. Custom resources are first, while the servers that finalize them still exist.
// Webhooks and API services follow, because they would block the API after the deletion of their
// servers. The rest follows in the reverse order of application, and the definitions are last.
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

// ToPrune returns the items of the inventory that are no longer wanted.
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

// Union returns the inventory together with the wanted objects. For an object in both, the result
// has the wanted version.
func Union(inventory []Item, wanted []Object) []Item {
	all := ToPrune(inventory, wanted)
	for _, o := range wanted {
		all = append(all, o.Item)
	}
	slices.SortFunc(all, func(x, y Item) int { return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.String(), y.String())) })
	return all
}

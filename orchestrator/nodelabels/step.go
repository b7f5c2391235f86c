package nodelabels

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// The annotations of a Node by which the halves remember and meet.
const (
	// LabelsAnnotation holds the keys of the labels that the node's half has set, as a JSON list.
	LabelsAnnotation = "orlop.dev/node-labels"
	// WantedAnnotation holds the taints that the node's configuration states, as a JSON list of
	// nodespec.Taint. Without it nothing is said.
	WantedAnnotation = "orlop.dev/node-taints"
	// SetAnnotation holds those of them that the control plane has set. No kubelet can write it
	// (kubeapiserver.NodeNotes).
	SetAnnotation = nodespec.TaintsSet
)

// Node is what counts here of a Node.
type Node struct {
	Labels map[string]string
	Taints []corev1.Taint
	Keys   string // LabelsAnnotation; empty: there is none, as for the other two
	Wanted string // WantedAnnotation
	Set    string // SetAnnotation
}

func readNode(n *corev1.Node) Node {
	return Node{
		Labels: n.Labels, Taints: n.Spec.Taints,
		Keys: n.Annotations[LabelsAnnotation], Wanted: n.Annotations[WantedAnnotation], Set: n.Annotations[SetAnnotation],
	}
}

// change is a merge patch of a Node's labels and annotations, and with taints its new taints. Nil
// values remove.
type change struct {
	labels, annotations map[string]any
	taints              *[]corev1.Taint
}

func (c change) empty() bool {
	return len(c.labels) == 0 && len(c.annotations) == 0 && c.taints == nil
}

// patch is the change in the form that the API server takes.
func (c change) patch() map[string]any {
	meta, out := map[string]any{}, map[string]any{}
	if len(c.labels) > 0 {
		meta["labels"] = c.labels
	}
	if len(c.annotations) > 0 {
		meta["annotations"] = c.annotations
	}
	out["metadata"] = meta
	if c.taints != nil {
		out["spec"] = map[string]any{"taints": *c.taints}
	}
	return out
}

// apply is the Node after the change.
func (c change) apply(n Node) Node {
	n.Labels = maps.Clone(n.Labels)
	for key, value := range c.labels {
		if text, ok := value.(string); ok {
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			n.Labels[key] = text
		} else {
			delete(n.Labels, key)
		}
	}
	for key, value := range c.annotations {
		text, _ := value.(string)
		switch key {
		case LabelsAnnotation:
			n.Keys = text
		case WantedAnnotation:
			n.Wanted = text
		case SetAnnotation:
			n.Set = text
		}
	}
	if c.taints != nil {
		n.Taints = *c.taints
	}
	return n
}

// LabelStep is what the node's half changes of its own Node: its labels, and what it says of taints.
// registered are the marks with which the kubelet has started, and so made the Node if there was
// none: as long as nothing is remembered, those labels are the configuration's.
//
//	label                          is stated: it gets the value   is not stated
//	remembered, or registered      and stays remembered           it goes
//	there, of somebody else        it becomes the configuration's it stays
func LabelStep(n Node, want, registered nodespec.NodeLabels) change {
	c := change{labels: map[string]any{}, annotations: map[string]any{}}
	remembered, _ := parse[string](n.Keys)
	if n.Keys == "" {
		for key, value := range registered.Labels {
			if have, there := n.Labels[key]; there && have == value {
				remembered = append(remembered, key)
			}
		}
	}
	for key, value := range want.Labels {
		if have, there := n.Labels[key]; !there || have != value {
			c.labels[key] = value
		}
	}
	for _, key := range remembered {
		_, wanted := want.Labels[key]
		if _, there := n.Labels[key]; there && !wanted {
			c.labels[key] = nil
		}
	}
	keys := text(slices.Sorted(maps.Keys(want.Labels)))
	if keys == "" && (n.Keys != "" || len(registered.Labels) > 0) {
		// so that what somebody else sets later is not taken for what the kubelet has set
		keys = none
	}
	if n.Keys != keys {
		c.annotations[LabelsAnnotation] = keys
	}
	wanted := text(want.Taints)
	if wanted == "" && (n.Set != "" || slices.ContainsFunc(n.Taints, pending)) {
		wanted = none // that there are none has to be said, because there were
	}
	if n.Wanted != wanted {
		c.annotations[WantedAnnotation] = note(wanted)
	}
	return c
}

// TaintStep is what the control plane changes of a Node: its taints, by what the node says and
// by what was set before. A Node that says nothing is left alone.
//
//	taint (key and effect)         is wanted                      is not wanted
//	set before                     it is there, with the value    it goes
//	there, of somebody else        it stays as it is, not ours    it stays
//	not there                      it is set                      -
//
// What Kubernetes or the system sets by itself (config.OwnTaint) no node can want: it could be rid
// of it then.
func TaintStep(n Node) (change, error) {
	if n.Wanted == "" {
		return change{}, nil
	}
	wanted, ok := parse[nodespec.Taint](n.Wanted)
	if !ok {
		// the node writes it anew
		return change{}, fmt.Errorf("its annotation %s cannot be read", WantedAnnotation)
	}
	own := func(t nodespec.Taint) bool { return config.OwnTaint(t.Key) != "" }
	wanted = slices.DeleteFunc(wanted, own)
	before, _ := parse[nodespec.Taint](n.Set)
	before = slices.DeleteFunc(before, own) // somebody else may have written it
	find := func(all []nodespec.Taint, t corev1.Taint) int {
		return slices.IndexFunc(all, func(o nodespec.Taint) bool { return o.Key == t.Key && o.Effect == string(t.Effect) })
	}
	var taints []corev1.Taint
	var set []nodespec.Taint
	there := map[int]bool{} // of wanted
	for _, t := range n.Taints {
		i := find(wanted, t)
		there[i] = true
		switch {
		case pending(t):
		case find(before, t) < 0: // somebody else's
			taints = append(taints, t)
		case i >= 0:
			set = append(set, wanted[i])
			if t.Value != wanted[i].Value {
				t = taint(wanted[i])
			}
			taints = append(taints, t)
		}
	}
	for i, t := range wanted {
		if !there[i] {
			taints, set = append(taints, taint(t)), append(set, t)
		}
	}
	c := change{annotations: map[string]any{}}
	if !slices.Equal(taints, n.Taints) {
		c.taints = &taints
	}
	slices.SortFunc(set, func(a, b nodespec.Taint) int {
		return strings.Compare(a.Key+":"+a.Effect, b.Key+":"+b.Effect)
	})
	if n.Set != text(set) {
		c.annotations[SetAnnotation] = note(text(set))
	}
	return c, nil
}

// describe says how far the configuration is in force on the Node.
func describe(name string, n Node, want nodespec.NodeLabels) string {
	line := fmt.Sprintf("%d labels, %d taints of the configuration", len(want.Labels), len(want.Taints))
	set, _ := parse[nodespec.Taint](n.Set)
	for _, w := range want.Taints {
		i := slices.IndexFunc(n.Taints, func(t corev1.Taint) bool { return t.Key == w.Key && string(t.Effect) == w.Effect })
		switch {
		case i < 0:
			return line + "; the control plane has not set the taint " + w.Key + ":" + w.Effect + " yet"
		case n.Taints[i].Value != w.Value && !slices.ContainsFunc(set, func(s nodespec.Taint) bool { return s.Key == w.Key && s.Effect == w.Effect }):
			return fmt.Sprintf("%s; the taint %s is there, and somebody else has set it: `kubectl taint node %s %s:%s-` makes room for the configuration's", line, n.Taints[i].ToString(), name, w.Key, w.Effect)
		}
	}
	return line
}

func taint(t nodespec.Taint) corev1.Taint {
	return corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
}

func pending(t corev1.Taint) bool { return t.Key == nodespec.TaintsPending }

// none is an empty list, where that says something else than no list.
const none = "[]"

// text is a list as an annotation holds it; nothing for an empty one.
func text[T any](all []T) string {
	if len(all) == 0 {
		return ""
	}
	out, err := json.Marshal(all)
	if err != nil {
		panic(err) // a list of strings, or of structs of strings
	}
	return string(out)
}

// note is the value of an annotation in a patch; an empty one goes.
func note(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// parse reads a list that an annotation holds. One that somebody else has written may not be one.
func parse[T any](text string) (all []T, ok bool) {
	if text == "" {
		return nil, true
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, false
	}
	return all, true
}

// lean leaves of a Node what counts here.
func lean(object any) (any, error) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	notes := map[string]string{}
	for _, name := range []string{LabelsAnnotation, WantedAnnotation, SetAnnotation} {
		if value, there := n.Annotations[name]; there {
			notes[name] = value
		}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels, Annotations: notes},
		Spec:       corev1.NodeSpec{Taints: n.Spec.Taints},
	}, nil
}

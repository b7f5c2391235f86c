package nodelabels

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// The annotations of a Node in which the two components record state and exchange it.
const (
	// LabelsAnnotation contains the keys of the labels that the component on the node has set, as a
	// JSON list.
	LabelsAnnotation = "orlop.dev/node-labels"
	// WantedAnnotation contains the taints of the node's configuration, as a JSON list of
	// nodespec.Taint. Without this annotation, the configured taints are unknown.
	WantedAnnotation = "orlop.dev/node-taints"
	// SetAnnotation contains the taints that the component of the controllers has set, in the same
	// format. No kubelet can write it (kubeapiserver.NodeAnnotations).
	SetAnnotation = nodespec.TaintsSet
)

// Node contains the fields of a Node object that LabelStep and TaintStep need.
type Node struct {
	Labels map[string]string
	Taints []corev1.Taint
	Keys   string // the value of LabelsAnnotation, or "" if it is missing
	Wanted string // the value of WantedAnnotation, or ""
	Set    string // the value of SetAnnotation, or ""
}

func readNode(n *corev1.Node) Node {
	return Node{
		Labels: n.Labels, Taints: n.Spec.Taints,
		Keys: n.Annotations[LabelsAnnotation], Wanted: n.Annotations[WantedAnnotation], Set: n.Annotations[SetAnnotation],
	}
}

// change is a change of a Node: a merge patch of its labels and annotations, in which nil removes a
// key, and its new taints. If the field taints is nil, the taints of the Node stay.
type change struct {
	labels, annotations map[string]any
	taints              *[]corev1.Taint
}

func (c change) empty() bool {
	return len(c.labels) == 0 && len(c.annotations) == 0 && c.taints == nil
}

// patch returns the change as a merge patch for the API server.
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

// apply returns the Node as it is after the change.
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

// LabelStep returns the changes of the component on the node to its own Node: the labels, and the
// published taints. The parameter registered has the labels and taints with which the kubelet has
// registered the Node. A label is recorded if its key is in LabelsAnnotation. While the Node has no
// LabelsAnnotation, the registered labels that the Node still has count as recorded.
//
//	label                    in the configuration              not in the configuration
//	recorded                 gets the value, stays recorded    is removed
//	present, not recorded    gets the value, becomes recorded  stays
//	missing                  is set, becomes recorded          -
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
	keys := encode(slices.Sorted(maps.Keys(want.Labels)))
	if keys == "" && (n.Keys != "" || len(registered.Labels) > 0) {
		// The annotation gets an explicit empty list. Without any list, the next step would count
		// the registered labels as recorded, even if another client has set them since.
		keys = none
	}
	if n.Keys != keys {
		c.annotations[LabelsAnnotation] = keys
	}
	wanted := encode(want.Taints)
	if wanted == "" && (n.Set != "" || slices.ContainsFunc(n.Taints, pending)) {
		wanted = none // the Node still has taints to remove, so the empty list is published, too
	}
	if n.Wanted != wanted {
		c.annotations[WantedAnnotation] = annotationValue(wanted)
	}
	return c
}

// TaintStep returns the changes of the component of the controllers to a Node: its taints and the
// recorded taints. The published taints are those in WantedAnnotation, the recorded taints those in
// SetAnnotation. A Node without published taints does not change. TaintStep returns an error if the
// annotation with the published taints is invalid.
//
//	taint (key and effect)   published                         not published
//	recorded                 stays, with the published value   is removed
//	present, not recorded    stays unchanged, is not recorded  stays
//	missing                  is set and recorded               -
//
// TaintStep ignores published taints that Kubernetes or the system itself sets (config.OwnTaint).
// Otherwise a node could make the controllers remove these taints.
func TaintStep(n Node) (change, error) {
	if n.Wanted == "" {
		return change{}, nil
	}
	wanted, ok := parse[nodespec.Taint](n.Wanted)
	if !ok {
		// the component on the node writes the annotation again
		return change{}, fmt.Errorf("its annotation %s cannot be read", WantedAnnotation)
	}
	own := func(t nodespec.Taint) bool { return config.OwnTaint(t.Key) != "" }
	wanted = slices.DeleteFunc(wanted, own)
	before, _ := parse[nodespec.Taint](n.Set)
	before = slices.DeleteFunc(before, own) // another client may have written the annotation
	find := func(all []nodespec.Taint, t corev1.Taint) int {
		return slices.IndexFunc(all, func(o nodespec.Taint) bool { return o.Key == t.Key && o.Effect == string(t.Effect) })
	}
	var taints []corev1.Taint
	var set []nodespec.Taint
	there := map[int]bool{} // the indexes of those elements of wanted that the Node has
	for _, t := range n.Taints {
		i := find(wanted, t)
		there[i] = true
		switch {
		case pending(t):
		case find(before, t) < 0: // another client has set this taint
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
	if n.Set != encode(set) {
		c.annotations[SetAnnotation] = annotationValue(encode(set))
	}
	return c, nil
}

// describe returns a status text: the number of configured labels and taints, and the first taint
// that is not set yet or that another client has set.
func describe(name string, n Node, want nodespec.NodeLabels) string {
	line := fmt.Sprintf("%d labels, %d taints of the configuration", len(want.Labels), len(want.Taints))
	set, _ := parse[nodespec.Taint](n.Set)
	for _, w := range want.Taints {
		i := slices.IndexFunc(n.Taints, func(t corev1.Taint) bool { return t.Key == w.Key && string(t.Effect) == w.Effect })
		switch {
		case i < 0:
			return line + "; the control plane has not set the taint " + w.Key + ":" + w.Effect + " yet"
		case n.Taints[i].Value != w.Value && !slices.ContainsFunc(set, func(s nodespec.Taint) bool { return s.Key == w.Key && s.Effect == w.Effect }):
			return fmt.Sprintf("%s; another client has set the taint %s: `kubectl taint node %s %s:%s-` makes room for the configured taint", line, n.Taints[i].ToString(), name, w.Key, w.Effect)
		}
	}
	return line
}

func taint(t nodespec.Taint) corev1.Taint {
	return corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
}

func pending(t corev1.Taint) bool { return t.Key == nodespec.TaintsPending }

// The constant none is the value of an annotation with an empty list. A missing annotation has
// another meaning.
const none = "[]"

// encode returns a list as the value of an annotation, or "" for an empty list.
func encode[T any](all []T) string {
	if len(all) == 0 {
		return ""
	}
	out, err := json.Marshal(all)
	if err != nil {
		panic(err) // cannot happen for strings and structs of strings
	}
	return string(out)
}

// annotationValue returns the value of an annotation in a merge patch. For an empty text it is nil,
// which removes the annotation.
func annotationValue(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// parse decodes a list from an annotation. It returns false if the value is invalid, because
// another client may have written it.
func parse[T any](text string) (all []T, ok bool) {
	if text == "" {
		return nil, true
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, false
	}
	return all, true
}

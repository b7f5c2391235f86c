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

// The annotations of a Node through which the two parts record and exchange state.
const (
	// LabelsAnnotation contains the keys of the labels that the node part has set, as a JSON list.
	LabelsAnnotation = "orlop.dev/node-labels"
	// WantedAnnotation contains the taints of the node's configuration, as a JSON list of
	// nodespec.Taint. Without it, the configured taints are unknown.
	WantedAnnotation = "orlop.dev/node-taints"
	// SetAnnotation contains the taints that the control plane has set. No kubelet can write it
	// (kubeapiserver.NodeAnnotations).
	SetAnnotation = nodespec.TaintsSet
)

// Node is the relevant part of a Node object.
type Node struct {
	Labels map[string]string
	Taints []corev1.Taint
	Keys   string // LabelsAnnotation; empty if missing, as are the other two
	Wanted string // WantedAnnotation
	Set    string // SetAnnotation
}

func readNode(n *corev1.Node) Node {
	return Node{
		Labels: n.Labels, Taints: n.Spec.Taints,
		Keys: n.Annotations[LabelsAnnotation], Wanted: n.Annotations[WantedAnnotation], Set: n.Annotations[SetAnnotation],
	}
}

// change is a merge patch of a Node's labels and annotations, and optionally its new taints. Nil
// values remove.
type change struct {
	labels, annotations map[string]any
	taints              *[]corev1.Taint
}

func (c change) empty() bool {
	return len(c.labels) == 0 && len(c.annotations) == 0 && c.taints == nil
}

// patch returns the change as a patch for the API server.
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

// apply returns the Node after the change.
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

// LabelStep returns the changes of the node part to its own Node: the labels and the published
// taints. registered are the labels and taints with which the kubelet registered. As long as the
// Node has no record, these labels count as set by the configuration.
//
//	label                          in the configuration           not in the configuration
//	recorded, or registered        gets the value, stays recorded is removed
//	present, foreign               becomes the configuration's    stays
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
		// so that a label that another client sets later does not count as registered by the
		// kubelet
		keys = none
	}
	if n.Keys != keys {
		c.annotations[LabelsAnnotation] = keys
	}
	wanted := encode(want.Taints)
	if wanted == "" && (n.Set != "" || slices.ContainsFunc(n.Taints, pending)) {
		wanted = none // an explicit empty list, because the Node had taints
	}
	if n.Wanted != wanted {
		c.annotations[WantedAnnotation] = annotationValue(wanted)
	}
	return c
}

// TaintStep returns the changes of the control plane to a Node: its taints, from the node's
// published taints and the recorded taints. A Node without published taints is left alone.
//
//	taint (key and effect)         wanted                         not wanted
//	set before                     stays, with the wanted value   is removed
//	present, foreign               stays unchanged, not recorded  stays
//	missing                        is set                         -
//
// No node can want a taint that Kubernetes or the system itself sets (config.OwnTaint): it could
// then remove this taint.
func TaintStep(n Node) (change, error) {
	if n.Wanted == "" {
		return change{}, nil
	}
	wanted, ok := parse[nodespec.Taint](n.Wanted)
	if !ok {
		// the node writes it again
		return change{}, fmt.Errorf("its annotation %s cannot be read", WantedAnnotation)
	}
	own := func(t nodespec.Taint) bool { return config.OwnTaint(t.Key) != "" }
	wanted = slices.DeleteFunc(wanted, own)
	before, _ := parse[nodespec.Taint](n.Set)
	before = slices.DeleteFunc(before, own) // another client may have written it
	find := func(all []nodespec.Taint, t corev1.Taint) int {
		return slices.IndexFunc(all, func(o nodespec.Taint) bool { return o.Key == t.Key && o.Effect == string(t.Effect) })
	}
	var taints []corev1.Taint
	var set []nodespec.Taint
	there := map[int]bool{} // indexes of wanted
	for _, t := range n.Taints {
		i := find(wanted, t)
		there[i] = true
		switch {
		case pending(t):
		case find(before, t) < 0: // foreign
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

// describe returns a text about how far the configuration is applied to the Node.
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

// none is an explicit empty list, where it differs from a missing list.
const none = "[]"

// encode returns a list as the value of an annotation, or "" for an empty list.
func encode[T any](all []T) string {
	if len(all) == 0 {
		return ""
	}
	out, err := json.Marshal(all)
	if err != nil {
		panic(err) // a list of strings, or of structs of strings
	}
	return string(out)
}

// annotationValue returns the value of an annotation in a patch; nil removes an empty annotation.
func annotationValue(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// parse decodes a list from an annotation. Another client may have written an invalid value.
func parse[T any](text string) (all []T, ok bool) {
	if text == "" {
		return nil, true
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, false
	}
	return all, true
}

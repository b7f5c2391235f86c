package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Node says what the machine's Kubernetes Node carries besides what Kubernetes and the system give
// it.
type Node struct {
	// Labels of the Node, by their keys. Those of kubernetes.io and k8s.io are refused but for what
	// a kubelet may say of its own Node: topology.kubernetes.io/zone and region,
	// node.kubernetes.io/instance-type, and keys whose prefix ends with node.kubernetes.io or
	// kubelet.kubernetes.io. At most 64.
	Labels map[string]string `yaml:"labels,omitempty"`
	// Taints of the Node: pods that do not tolerate them keep off. At most 32; a key once for each
	// effect.
	Taints []Taint `yaml:"taints,omitempty"`
}

// Taint keeps pods off a Node that do not tolerate it.
type Taint struct {
	// Key of the taint, as a label's.
	Key string `yaml:"key" jsonschema:"required"`
	// Value of the taint, as a label's.
	Value string `yaml:"value,omitempty"`
	// Effect of the taint: NoSchedule keeps new pods off, PreferNoSchedule does where there is
	// another Node for them, NoExecute also puts pods out that run.
	Effect TaintEffect `yaml:"effect" jsonschema:"required"`
}

// String is the taint as kubectl writes it.
func (t Taint) String() string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + string(t.Effect)
}

// TaintEffect is what a taint does to pods that do not tolerate it.
type TaintEffect string

// The effects, by Kubernetes' own names.
const (
	TaintNoSchedule       TaintEffect = "NoSchedule"
	TaintPreferNoSchedule TaintEffect = "PreferNoSchedule"
	TaintNoExecute        TaintEffect = "NoExecute"
)

// Names lists the effects.
func (TaintEffect) Names() []string {
	return []string{string(TaintNoSchedule), string(TaintPreferNoSchedule), string(TaintNoExecute)}
}

// ParseTaint reads a taint as kubectl writes it: key=value:Effect, or key:Effect. Whether it can be
// used is for Check.
func ParseTaint(text string) (Taint, error) {
	head, effect, found := strings.Cut(text, ":")
	if !found || effect == "" || head == "" {
		return Taint{}, fmt.Errorf("%s: cannot use: expected key=value:Effect or key:Effect, such as dedicated=gpu:NoSchedule", quote(text))
	}
	if names := TaintEffect("").Names(); !slices.Contains(names, effect) {
		return Taint{}, fmt.Errorf("%s: cannot use: the effect %s is not known; expected %s", quote(text), quote(effect), oneOf(names))
	}
	key, value, _ := strings.Cut(head, "=")
	return Taint{Key: key, Value: value, Effect: TaintEffect(effect)}, nil
}

// ParseLabel reads a label as kubectl writes it: key=value, where the value may be empty. Whether
// it can be used is for Check.
func ParseLabel(text string) (key, value string, err error) {
	key, value, found := strings.Cut(text, "=")
	if !found || key == "" {
		return "", "", fmt.Errorf("%s: cannot use: expected key=value, such as topology.kubernetes.io/zone=east", quote(text))
	}
	return key, value, nil
}

// How much a Node can be given here. All of it, and what is remembered of it, has to fit beside
// what else stands in a Node's annotations.
const (
	mostLabels = 64
	mostTaints = 32
)

// kubeletLabels are those of Kubernetes' own labels that a kubelet may set on its Node and that are
// not its own affair (k8s.io/kubelet/pkg/apis, well_known_labels.go); kubeletDomains are domains
// below which it may set any.
var (
	kubeletLabels  = []string{"node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "topology.kubernetes.io/zone"}
	kubeletDomains = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}
)

// insteadOf are former names of labels.
var insteadOf = map[string]string{
	"beta.kubernetes.io/instance-type":         "node.kubernetes.io/instance-type",
	"failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
	"failure-domain.beta.kubernetes.io/zone":   "topology.kubernetes.io/zone",
}

// ownLabel says what is wrong with giving a Node a label of this key from its own machine: nothing,
// if reason is empty.
func ownLabel(key string) (w wrong) {
	domain, _, found := strings.Cut(key, "/")
	const byKubectl = "`kubectl label node` sets it; what it sets stays"
	switch {
	case !found:
	case slices.Contains([]string{"beta.kubernetes.io/arch", "beta.kubernetes.io/os", "kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os"}, key):
		return wrong{reason: quote(key) + " is what the kubelet says of the machine itself", hint: "remove it"}
	case insteadOf[key] != "":
		return wrong{reason: quote(key) + " is a former name", expected: insteadOf[key], nearest: insteadOf[key]}
	case within(domain, "node-restriction.kubernetes.io"):
		return wrong{reason: quote(key) + " is kept from machines, so that none can draw pods to itself (NodeRestriction)", expected: "a label of another domain", hint: byKubectl}
	case !within(domain, "kubernetes.io") && !within(domain, "k8s.io"), slices.Contains(kubeletLabels, key):
	case slices.ContainsFunc(kubeletDomains, func(d string) bool { return within(domain, d) }):
	default:
		return wrong{reason: quote(key) + " is one of Kubernetes' own, which no machine may give itself (kubelet --node-labels, NodeRestriction)",
			expected: "a label of your own domain, " + strings.Join(kubeletLabels, ", ") + ", or one below " + strings.Join(kubeletDomains, " or "), nearest: nearest(key, kubeletLabels), hint: byKubectl}
	}
	return wrong{}
}

// OwnTaint says why a taint of this key cannot be set by a configuration, or "" when it can:
// Kubernetes or the system sets it and takes it away.
func OwnTaint(key string) string {
	domain, _, _ := strings.Cut(key, "/")
	switch {
	case key == "node-role.kubernetes.io/control-plane":
		return "Cluster.spec.kubernetes.allowSchedulingOnControlPlane: false sets it"
	case within(domain, "node.kubernetes.io"), within(domain, "node.cloudprovider.kubernetes.io"):
		return "Kubernetes sets it, and takes it away, by the state of the Node"
	case within(domain, "orlop.dev"):
		return "the system sets it, and takes it away"
	}
	return ""
}

// within says that a domain is another one or below it.
func within(domain, of string) bool {
	return domain == of || strings.HasSuffix(domain, "."+of)
}

// node checks what the machine's Node is to carry.
func (p *parser) node(path string, n *Node) {
	if len(n.Labels) > mostLabels {
		p.on(path+".labels", wrong{reason: fmt.Sprintf("%d labels", len(n.Labels)), expected: fmt.Sprintf("at most %d", mostLabels)})
	}
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		at := path + `.labels["` + shorten(key) + `"]`
		if err := qualifiedName(key); err != nil {
			p.on(at, wrong{reason: fmt.Sprintf("the key %s %v", quote(key), err), expected: labelKey})
		} else if w := ownLabel(key); w.reason != "" {
			p.on(at, w)
		} else if slices.Contains(kubeletLabels, key) && n.Labels[key] == "" {
			// the kubelet would take it away again
			p.on(at, wrong{reason: "is empty", expected: "a value", hint: "leave it out if there is nothing to say"})
		}
		p.labelValue(at, n.Labels[key])
	}
	if len(n.Taints) > mostTaints {
		p.on(path+".taints", wrong{reason: fmt.Sprintf("%d taints", len(n.Taints)), expected: fmt.Sprintf("at most %d", mostTaints)})
	}
	for i, t := range n.Taints {
		at := fmt.Sprintf("%s.taints[%d]", path, i)
		if err := qualifiedName(t.Key); err != nil && t.Key != "" {
			p.on(at+".key", wrong{reason: fmt.Sprintf("%s %v", quote(t.Key), err), expected: labelKey})
		} else if why := OwnTaint(t.Key); why != "" {
			p.on(at+".key", wrong{reason: quote(t.Key) + " cannot be set here: " + why, hint: "remove it"})
		}
		p.labelValue(at+".value", t.Value)
		same := func(o Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }
		if j := slices.IndexFunc(n.Taints[:i], same); j >= 0 && t.Key != "" {
			p.on(at, wrong{reason: fmt.Sprintf("has the key and the effect of taints[%d]", j), expected: "each key once for each effect"})
		}
	}
}

const labelKey = `up to 63 letters, digits, "-", "_" and ".", beginning and ending with a letter or digit, after a DNS name and "/" or alone, such as example.com/rack`

// labelValue checks the value of a label or a taint.
func (p *parser) labelValue(path, value string) {
	if err := nameOf63(value); err != nil && value != "" {
		p.on(path, wrong{reason: fmt.Sprintf("%s %v", quote(value), err), expected: `up to 63 letters, digits, "-", "_" and ".", beginning and ending with a letter or digit, or nothing`})
	}
}

// qualifiedName checks a label's key as Kubernetes does (k8s.io/apimachinery/pkg/util/validation,
// IsQualifiedName): a name, or a DNS name in lower case, "/" and a name.
func qualifiedName(key string) error {
	name := key
	if domain, rest, found := strings.Cut(key, "/"); found {
		if err := hostname(domain); err != nil {
			return fmt.Errorf(`is not right before "/": it %w`, err)
		}
		name = rest
	}
	if name == "" {
		return errors.New("has no name")
	}
	return nameOf63(name)
}

// nameOf63 checks a name of at most 63 letters, digits, "-", "_" and ".", the first and the last of
// which is a letter or digit.
func nameOf63(s string) error {
	if len(s) > 63 {
		return fmt.Errorf("has %d characters", len(s))
	}
	for i, r := range s {
		inner := r == '-' || r == '_' || r == '.'
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		case !inner:
			return fmt.Errorf("contains %q", r)
		case i == 0 || i == len(s)-1:
			return fmt.Errorf("begins or ends with %q", r)
		}
	}
	return nil
}

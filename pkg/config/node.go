package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Node configures the machine as a node of Kubernetes: the labels and taints that its Node has in
// addition to those of Kubernetes and the system, and the signatures that the images of its pods
// need.
type Node struct {
	Labels     map[string]string `yaml:"labels,omitempty"`
	LLDPLabels []LLDPLabel       `yaml:"lldpLabels,omitempty"`
	Taints     []Taint           `yaml:"taints,omitempty"`
	// ImagePolicy has the rules for signatures of images; if it is empty, no image needs a
	// signature.
	ImagePolicy []ImageRule `yaml:"imagePolicy,omitempty"`
}

// Taint keeps pods without a matching toleration away from the Node.
type Taint struct {
	Key    string      `yaml:"key" jsonschema:"required"`
	Value  string      `yaml:"value,omitempty"`
	Effect TaintEffect `yaml:"effect" jsonschema:"required"`
}

// String returns the taint in kubectl's format.
func (t Taint) String() string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + string(t.Effect)
}

// TaintEffect is the effect of a taint on pods without a toleration.
type TaintEffect string

// The effects, with the names of Kubernetes.
const (
	TaintNoSchedule       TaintEffect = "NoSchedule"
	TaintPreferNoSchedule TaintEffect = "PreferNoSchedule"
	TaintNoExecute        TaintEffect = "NoExecute"
)

// Names returns the effects.
func (TaintEffect) Names() []string {
	return []string{string(TaintNoSchedule), string(TaintPreferNoSchedule), string(TaintNoExecute)}
}

// ParseTaint parses a taint in kubectl's format: key=value:Effect, or key:Effect. It does not
// validate the taint; Check does.
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

// ParseLabel parses a label in kubectl's format: key=value, where the value can be empty. It does
// not validate the label; Check does.
func ParseLabel(text string) (key, value string, err error) {
	key, value, found := strings.Cut(text, "=")
	if !found || key == "" {
		return "", "", fmt.Errorf("%s: cannot use: expected key=value, such as topology.kubernetes.io/zone=east", quote(text))
	}
	return key, value, nil
}

// Maximum numbers for a Node. The system stores the labels and taints that it has set in
// annotations of the Node, which have a maximum total size.
const (
	maxLabels = 64
	maxTaints = 32
)

// kubeletLabels are labels of Kubernetes that a kubelet may set on its Node
// (k8s.io/kubelet/pkg/apis, well_known_labels.go). Labels for which the kubelet determines the
// values itself are omitted. kubeletDomains are domains below which a kubelet may set any label.
var (
	kubeletLabels  = []string{"node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "topology.kubernetes.io/zone"}
	kubeletDomains = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}
)

// currentLabels maps former label names to the current names.
var currentLabels = map[string]string{
	"beta.kubernetes.io/instance-type":         "node.kubernetes.io/instance-type",
	"failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
	"failure-domain.beta.kubernetes.io/zone":   "topology.kubernetes.io/zone",
}

// labelProblem returns the problem if a machine cannot set a label with this key on its Node.
// Otherwise it returns a zero value, with an empty reason.
func labelProblem(key string) (w wrong) {
	domain, _, found := strings.Cut(key, "/")
	const byKubectl = "set it with `kubectl label node`; the system does not change it"
	switch {
	case !found:
	case slices.Contains([]string{"beta.kubernetes.io/arch", "beta.kubernetes.io/os", "kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os"}, key):
		return wrong{reason: quote(key) + " is set by the kubelet itself", hint: "remove it"}
	case currentLabels[key] != "":
		return wrong{reason: quote(key) + " is a former name", expected: currentLabels[key], nearest: currentLabels[key]}
	case within(domain, "node-restriction.kubernetes.io"):
		return wrong{reason: quote(key) + " is not permitted for machines, so that no machine can attract pods (NodeRestriction)", expected: "a label of another domain", hint: byKubectl}
	case !within(domain, "kubernetes.io") && !within(domain, "k8s.io"), slices.Contains(kubeletLabels, key):
	case slices.ContainsFunc(kubeletDomains, func(d string) bool { return within(domain, d) }):
	default:
		return wrong{reason: quote(key) + " is a label of Kubernetes that no machine may set on its Node (kubelet --node-labels, NodeRestriction)",
			expected: "a label of your own domain, " + strings.Join(kubeletLabels, ", ") + ", or a label below " + strings.Join(kubeletDomains, " or "), nearest: nearest(key, kubeletLabels), hint: byKubectl}
	}
	return wrong{}
}

// OwnTaint returns the reason why a configuration cannot set a taint with this key, because
// Kubernetes or the system manages the taint. It returns "" if a configuration can set the taint.
func OwnTaint(key string) string {
	domain, _, _ := strings.Cut(key, "/")
	switch {
	case key == "node-role.kubernetes.io/control-plane":
		return "Cluster.spec.kubernetes.allowSchedulingOnControlPlane: false sets it"
	case within(domain, "node.kubernetes.io"), within(domain, "node.cloudprovider.kubernetes.io"):
		return "Kubernetes manages it by the state of the Node"
	case within(domain, "orlop.dev"):
		return "the system manages it"
	}
	return ""
}

// The function within reports whether a domain equals the domain in the parameter of, or is below
// that domain.
func within(domain, of string) bool {
	return domain == of || strings.HasSuffix(domain, "."+of)
}

// node validates the settings of Node.
func (v machineValidator) node(path string, n *Node) {
	if len(n.Labels) > maxLabels {
		v.on(path+".labels", wrong{reason: fmt.Sprintf("%d labels", len(n.Labels)), expected: fmt.Sprintf("at most %d", maxLabels)})
	}
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		at := path + `.labels["` + shorten(key) + `"]`
		if err := qualifiedName(key); err != nil {
			v.on(at, wrong{reason: fmt.Sprintf("the key %s %v", quote(key), err), expected: labelKey})
		} else if w := labelProblem(key); w.reason != "" {
			v.on(at, w)
		} else if slices.Contains(kubeletLabels, key) && n.Labels[key] == "" {
			// The kubelet removes such a label if its value is empty.
			v.on(at, wrong{reason: "is empty", expected: "a value", hint: "omit it if it is not needed"})
		}
		v.labelValue(at, n.Labels[key])
	}
	v.lldpLabels(path+".lldpLabels", n)
	v.imagePolicy(path+".imagePolicy", n.ImagePolicy)
	if len(n.Taints) > maxTaints {
		v.on(path+".taints", wrong{reason: fmt.Sprintf("%d taints", len(n.Taints)), expected: fmt.Sprintf("at most %d", maxTaints)})
	}
	for i, t := range n.Taints {
		at := fmt.Sprintf("%s.taints[%d]", path, i)
		if err := qualifiedName(t.Key); err != nil && t.Key != "" {
			v.on(at+".key", wrong{reason: fmt.Sprintf("%s %v", quote(t.Key), err), expected: labelKey})
		} else if why := OwnTaint(t.Key); why != "" {
			v.on(at+".key", wrong{reason: quote(t.Key) + " cannot be set here: " + why, hint: "remove it"})
		}
		v.labelValue(at+".value", t.Value)
		same := func(o Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }
		if j := slices.IndexFunc(n.Taints[:i], same); j >= 0 && t.Key != "" {
			v.on(at, wrong{reason: fmt.Sprintf("has the key and the effect of taints[%d]", j), expected: "each key once for each effect"})
		}
	}
}

const labelKey = `up to 63 letters, digits, "-", "_" and ".", beginning and ending with a letter or digit, after a DNS name and "/" or alone, such as example.com/rack`

// labelValue validates the value of a label or a taint.
func (v checks) labelValue(path, value string) {
	if err := nameOf63(value); err != nil && value != "" {
		v.on(path, wrong{reason: fmt.Sprintf("%s %v", quote(value), err), expected: `up to 63 letters, digits, "-", "_" and ".", beginning and ending with a letter or digit, or nothing`})
	}
}

// qualifiedName validates a label key as Kubernetes does (k8s.io/apimachinery/pkg/util/validation,
// IsQualifiedName): a name, or a DNS name in lower case, "/" and a name.
func qualifiedName(key string) error {
	name := key
	if domain, rest, found := strings.Cut(key, "/"); found {
		if err := hostname(domain); err != nil {
			return fmt.Errorf(`has an invalid part before "/": it %w`, err)
		}
		name = rest
	}
	if name == "" {
		return errors.New("has no name")
	}
	return nameOf63(name)
}

// nameOf63 validates a name of at most 63 letters, digits, "-", "_" and "." that begins and ends
// with a letter or digit.
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

package config

import (
	"fmt"
	"slices"
)

// LLDPLabel is a label of the Node. Its value comes from the announcement of a neighbor of the
// machine (LLDP, IEEE 802.1AB).
type LLDPLabel struct {
	Key  string    `yaml:"key" jsonschema:"required"`
	From LLDPField `yaml:"from" jsonschema:"required"`
	// Link is the name of a physical link, or a pattern of names; empty matches all links.
	Link string `yaml:"link,omitempty"`
	// The value of the label is the part of the neighbor's text after the first After and before
	// the next Before. An empty After means the beginning of the text, and an empty Before its end.
	// If the text lacks one of the given separators, the Node gets no label.
	After  string `yaml:"after,omitempty"`
	Before string `yaml:"before,omitempty"`
}

// LLDPField is a field in the announcement of a neighbor.
type LLDPField string

// The fields.
const (
	LLDPChassis         LLDPField = "chassis"
	LLDPPort            LLDPField = "port"
	LLDPPortDescription LLDPField = "portDescription"
	LLDPSystemName      LLDPField = "systemName"
	LLDPVLAN            LLDPField = "vlan"
)

// Names returns the fields.
func (LLDPField) Names() []string {
	return []string{string(LLDPSystemName), string(LLDPChassis), string(LLDPPort), string(LLDPPortDescription), string(LLDPVLAN)}
}

// LLDP configures the announcements of the machine to its neighbors.
type LLDP struct {
	Announce bool `yaml:"announce"`
}

// maxSeparator is the maximum length of a separator in bytes. Texts in LLDP have the same maximum
// length.
const maxSeparator = 255

// lldpLabels validates the labels from neighbors. Each label has a single source: Labels, or an
// item of LLDPLabels.
func (v machineValidator) lldpLabels(path string, n *Node) {
	if all := len(n.Labels) + len(n.LLDPLabels); len(n.LLDPLabels) > 0 && all > maxLabels {
		v.on(path, wrong{reason: fmt.Sprintf("%d labels together with the field labels", all), expected: fmt.Sprintf("at most %d", maxLabels)})
	}
	seen := map[string]int{}
	for i, l := range n.LLDPLabels {
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := qualifiedName(l.Key); err != nil && l.Key != "" {
			v.on(at+".key", wrong{reason: fmt.Sprintf("%s %v", quote(l.Key), err), expected: labelKey})
		} else if w := labelProblem(l.Key); w.reason != "" {
			v.on(at+".key", w)
		} else if _, twice := n.Labels[l.Key]; twice {
			v.on(at+".key", wrong{reason: quote(l.Key) + " is also in labels", expected: "each label once"})
		}
		v.unique(at+".key", "lldpLabels", l.Key, i, seen)
		if len(l.Link) > 15 || slices.ContainsFunc([]rune(l.Link), func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) {
			v.on(at+".link", wrong{reason: quote(l.Link) + " is not the name of a link", expected: `a name such as eth0, or a pattern such as "eth*"`})
		} else if badPattern(l.Link) {
			v.on(at+".link", patternProblem(l.Link))
		}
		for name, text := range map[string]string{"after": l.After, "before": l.Before} {
			if len(text) > maxSeparator || slices.ContainsFunc([]rune(text), func(r rune) bool { return r < ' ' || r > '~' }) {
				v.on(at+"."+name, wrong{reason: quote(text) + " cannot be in a text of a neighbor", expected: fmt.Sprintf("at most %d printable ASCII characters", maxSeparator)})
			}
		}
	}
}

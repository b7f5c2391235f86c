package lldp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/glob"
)

// Labels returns the labels that the neighbors give the Node, and the reasons for which a label has
// no value or an old value. A label gets a value if all neighbors that the rule selects give the
// same value. If they give different values or none, the label keeps its last value. A switch that
// restarts sends no frames for minutes, and without the label, the next start of the kubelet could
// stop pods that need the label.
func Labels(rules []config.LLDPLabel, neighbors []Neighbor, last map[string]string) (labels map[string]string, problems []string) {
	labels = map[string]string{}
	for _, r := range rules {
		values := candidates(r, neighbors)
		switch kept := last[r.Key]; {
		case len(values) == 1:
			labels[r.Key] = values[0]
			continue
		case kept != "":
			labels[r.Key] = kept
		}
		if len(neighbors) == 0 {
			continue // the first frame comes up to 30 s after the link is up
		}
		why := "no neighbor gives it a value"
		if len(values) > 1 {
			why = "the neighbors give it different values: " + strings.Join(values, ", ")
		}
		if kept := labels[r.Key]; kept != "" {
			why += "; the last value stays: " + kept
		}
		problems = append(problems, fmt.Sprintf("label %s: %s", r.Key, why))
	}
	return labels, problems
}

// candidates returns the different values that the neighbors give a label, sorted.
func candidates(r config.LLDPLabel, neighbors []Neighbor) []string {
	var values []string
	for _, n := range neighbors {
		if r.Link != "" && !glob.Match(r.Link, n.Link) {
			continue
		}
		if v := labelValue(extract(r, field(n, r.From))); v != "" {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

func field(n Neighbor, from config.LLDPField) string {
	switch from {
	case config.LLDPChassis:
		return n.Chassis
	case config.LLDPPort:
		return n.Port
	case config.LLDPPortDescription:
		return n.PortDescription
	case config.LLDPSystemName:
		return n.SystemName
	case config.LLDPVLAN:
		if n.VLAN != 0 {
			return strconv.Itoa(n.VLAN)
		}
	}
	return ""
}

// extract returns the part of a text between the separators of a rule; empty if a separator is
// missing.
func extract(r config.LLDPLabel, text string) string {
	if r.After != "" {
		_, text, _ = strings.Cut(text, r.After)
	}
	if r.Before == "" {
		return text
	}
	value, _, found := strings.Cut(text, r.Before)
	if !found {
		return ""
	}
	return value
}

// labelValue converts a text to the value of a label: up to 63 letters, digits, "-", "_" and ".",
// beginning and ending with a letter or digit. Other characters become "-", for example in
// Ethernet1/17.
func labelValue(text string) string {
	value := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_':
			return r
		}
		return '-'
	}, text)
	return strings.Trim(value[:min(len(value), 63)], "-_.")
}

// Package upstream lists names of Kubernetes that a configuration can contain: feature gates,
// admission plugins, versions of API groups, and plugins of the scheduler. The lists are text
// files, because PID 1 and orlopctl link no code of Kubernetes. The test TestUpstreamTables of
// package orchestrator writes these files, and compares them with the linked Kubernetes.
package upstream

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:embed *.txt
var tables embed.FS

// Gate is a feature gate. Every component of Kubernetes in Orlop OS knows all gates, because all
// components are linked into the same program.
type Gate struct {
	Default  bool
	Locked   bool     // no value except Default is possible
	Requires []string // gates that must be enabled if this gate is enabled
}

// Gates returns the feature gates by name.
func Gates() map[string]Gate {
	gates := map[string]Gate{}
	// a line: name, stage, default ("on" or "off"), optionally "locked" and "requires=NAME"
	for _, words := range lines("gates.txt") {
		gate := Gate{Default: words[2] == "on"}
		for _, word := range words[3:] {
			name, requires := strings.CutPrefix(word, "requires=")
			if requires {
				gate.Requires = append(gate.Requires, name)
			} else {
				gate.Locked = true
			}
		}
		gates[words[0]] = gate
	}
	return gates
}

// AdmissionPlugins maps the names of the admission plugins to whether they are enabled by default.
func AdmissionPlugins() map[string]bool { return switches("admission.txt") }

// APIVersions maps the versions of API groups, for example apps/v1, to whether they are enabled by
// default.
func APIVersions() map[string]bool { return switches("apis.txt") }

// ScorePlugins returns the sorted names of the plugins with which the scheduler scores nodes.
func ScorePlugins() []string {
	var names []string
	for _, words := range lines("scores.txt") {
		names = append(names, words[0])
	}
	return names
}

// switches reads a table with a name and "on" or "off" in each line.
func switches(file string) map[string]bool {
	values := map[string]bool{}
	for _, words := range lines(file) {
		values[words[0]] = words[1] == "on"
	}
	return values
}

// Names returns the sorted names of a table.
func Names[V any](table map[string]V) []string { return slices.Sorted(maps.Keys(table)) }

// lines returns the words of each line of a table.
func lines(file string) (all [][]string) {
	text, err := tables.ReadFile(file)
	if err != nil {
		// This cannot happen: the file is a part of the program.
		panic(fmt.Sprintf("upstream: cannot read a table: %v", err))
	}
	for line := range strings.Lines(string(text)) {
		all = append(all, strings.Fields(line))
	}
	return all
}

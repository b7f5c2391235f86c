package clusterhealth

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
)

// maxFields is the maximum number of fields that a finding names.
const maxFields = 8

// copyOf is the copy of the Cluster document on a machine, as digests of its fields.
type copyOf struct {
	machine string
	worker  bool
	fields  map[string][]byte // by path; the machine's version knows no other fields
}

// difference is a machine with a copy that differs from the copies of most machines.
type difference struct {
	copy   int      // index of the machine's copy
	fields []string // sorted
	// others are the machines with the usual value of the first of these fields.
	others []string
}

// compareDocuments compares each copy with the values that most control-plane machines have
// (usualValue). It returns the machines with other values, in the order of the copies. For a
// worker, it compares only the fields that workers have from the control plane.
func compareDocuments(copies []copyOf) []difference {
	values := map[string]map[string][]string{} // path → digest → control-plane machines
	for _, c := range copies {
		if c.worker {
			continue
		}
		for path, digest := range c.fields {
			if values[path] == nil {
				values[path] = map[string][]string{}
			}
			values[path][string(digest)] = append(values[path][string(digest)], c.machine)
		}
	}
	var all []difference
	for i, c := range copies {
		d := difference{copy: i}
		for _, path := range slices.Sorted(maps.Keys(c.fields)) {
			if c.worker && !config.IsWorkerField(path) {
				continue
			}
			usual, machines := usualValue(values[path], copies)
			if usual == "" || usual == string(c.fields[path]) {
				continue
			}
			if d.fields = append(d.fields, path); d.others == nil {
				d.others = machines
			}
		}
		if len(d.fields) > 0 {
			all = append(all, d)
		}
	}
	return all
}

// usualValue returns the digest that most control-plane machines have, and these machines. If
// several digests are equally frequent, it returns the digest of the first copy that has one of
// them.
func usualValue(machines map[string][]string, copies []copyOf) (usual string, holders []string) {
	rank := func(digest string) int {
		return slices.IndexFunc(copies, func(c copyOf) bool { return slices.Contains(machines[digest], c.machine) })
	}
	for _, digest := range slices.Sorted(maps.Keys(machines)) {
		n, most := len(machines[digest]), len(holders)
		if n > most || n == most && rank(digest) < rank(usual) {
			usual, holders = digest, machines[digest]
		}
	}
	return usual, holders
}

// String describes a difference, without values: a field can be a secret.
func (d difference) String() string {
	fields := strings.Join(d.fields[:min(len(d.fields), maxFields)], ", ")
	if more := len(d.fields) - maxFields; more > 0 {
		fields += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("its copy of the Cluster document differs from that of %s in %s", listed(d.others), fields)
}

// listed returns at most three names.
func listed(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

package localvolumes

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
)

// A node can have volumes in several pools: on DATA, and on each volume of its configuration with a
// StorageClass of its own. A pool has a report and requests of its own, in annotations with its
// name. The pool on DATA has no name. For the decisions (step.go), each pool of a node is a Node,
// with a place in place of the host name.

// parameterPool is the parameter of a StorageClass with the name of its pool, and the attribute of
// a PersistentVolume in a pool; missing: the pool on DATA.
const parameterPool = "volume"

// limitsOf returns the limits of a pool. All pools of a node share the limit of its annotations: 4
// pools with these limits have 72 KiB beside the 140 KiB of the pool on DATA.
func limitsOf(pool string) (l struct{ names, obsolete, copies int }) {
	if l.names, l.obsolete, l.copies = maxNames, maxObsolete, maxCopies; pool != "" {
		l.names, l.obsolete, l.copies = 128, 32, 8
	}
	return l
}

// maxPools is the maximum number of pool names in a cluster that get a StorageClass: a node can
// report any name.
const maxPools = 32

// poolName matches the names of pools: a Volume document's name.
var poolName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// annotation returns the annotation of a pool.
func annotation(of, pool string) string {
	if pool == "" {
		return of
	}
	return of + "." + pool
}

// reportedPools returns the named pools for which a Node has a report, sorted.
func reportedPools(annotations map[string]string) (names []string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if pool, ours := strings.CutPrefix(key, ReportAnnotation+"."); ours && poolName.MatchString(pool) {
			names = append(names, pool)
		}
	}
	return names
}

// placeOf returns the place of a pool on a node, by which volumes and decisions refer to it. A host
// name has no slash.
func placeOf(hostname, pool string) string {
	if pool == "" || hostname == "" {
		return hostname
	}
	return hostname + "/" + pool
}

// splitPlace returns the host name and the pool of a place.
func splitPlace(place string) (hostname, pool string) {
	hostname, pool, _ = strings.Cut(place, "/")
	return hostname, pool
}

// readNodes returns the pools of a Node; none if its label contradicts its name.
func readNodes(object any) []Node {
	own := readNode(object)
	n, ok := object.(*corev1.Node)
	if own == nil || !ok {
		return nil
	}
	all := []Node{*own}
	for _, pool := range reportedPools(n.Annotations) {
		all = append(all, Node{
			Name: n.Name, Pool: pool, Hostname: placeOf(own.Hostname, pool), Report: parseReport(n.Annotations[annotation(ReportAnnotation, pool)]),
			Obsolete: parseObsolete(n.Annotations[annotation(ObsoleteAnnotation, pool)]), Copies: parseCopies(n.Annotations[annotation(CopiesAnnotation, pool)]),
		})
	}
	return all
}

// sameNodes reports whether two lists of the pools of a Node are equal.
func sameNodes(a, b []Node) bool { return len(a) > 0 && slices.EqualFunc(a, b, sameNode) }

// unreported returns the pools that have volumes or snapshots and that their existing node has not
// reported: their data may still exist.
func unreported(w Input) (all []Node) {
	known, names := map[string]bool{}, map[string]string{}
	for _, n := range w.Nodes {
		known[n.Hostname] = true
		if n.Pool == "" {
			names[n.Hostname] = n.Name
		}
	}
	add := func(place string) {
		hostname, pool := splitPlace(place)
		if pool == "" || known[place] || names[hostname] == "" {
			return
		}
		known[place] = true
		all = append(all, Node{Name: names[hostname], Pool: pool, Hostname: place, Report: Report{Problem: fmt.Sprintf("it has not reported its volume %s yet", pool)}})
	}
	for _, v := range w.Volumes {
		add(v.Node)
	}
	for _, c := range w.Contents {
		add(c.Node)
	}
	return all
}

// CreateClass creates the StorageClass of a pool.
type CreateClass struct{ Name, Pool string }

func (o CreateClass) String() string {
	return fmt.Sprintf("create StorageClass %s of volume %s", o.Name, o.Pool)
}

// className returns the name of the StorageClass of a pool.
func className(pool string) string { return bootstrap.LocalClass + "-" + pool }

// newClasses creates the missing StorageClasses of the reported pools. A class that was deleted
// while a node reports the pool is created again.
func newClasses(w Input) (ops []Op) {
	pools := map[string]bool{}
	for _, n := range w.Nodes {
		if n.Pool != "" && n.Report.Problem == "" {
			pools[n.Pool] = true
		}
	}
	names := slices.Sorted(maps.Keys(pools))
	for _, pool := range names[:min(len(names), maxPools)] {
		if !slices.ContainsFunc(w.Classes, func(c StorageClass) bool { return c.Name == className(pool) }) {
			ops = append(ops, CreateClass{className(pool), pool})
		}
	}
	return ops
}

// writeClass returns the StorageClass of a pool: like that of DATA, but no default.
func writeClass(o CreateClass) *storagev1.StorageClass {
	class := bootstrap.NewLocalClass(o.Name)
	class.Parameters = map[string]string{parameterPool: o.Pool}
	return class
}

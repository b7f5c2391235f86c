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

// A node can have volumes in several pools: one on DATA, and one on each volume of the machine that
// has its own StorageClass. The pool on DATA has no name. Each pool has its own report and its own
// requests, in annotations that end with the name of the pool. step.go treats each pool of a node
// as a separate Node. Its field Hostname is the place of the pool (placeOf).

// parameterPool is the parameter of a StorageClass, and the attribute of a PersistentVolume, with
// the name of the pool as its value. Without it, the pool is on DATA.
const parameterPool = "volume"

// limitsOf returns the limits of a pool: how many volumes and snapshots it can have, how many names
// a request to destroy can have, and how many copies a request can have. The limits of named pools
// are lower, because all annotations of a Node share one size limit. The annotations of 4 named
// pools need up to 72 KiB, and those of the pool on DATA 140 KiB (report.go).
func limitsOf(pool string) (l struct{ names, obsolete, copies int }) {
	if l.names, l.obsolete, l.copies = maxNames, maxObsolete, maxCopies; pool != "" {
		l.names, l.obsolete, l.copies = 128, 32, 8
	}
	return l
}

// maxPools is the largest number of pools in a cluster for which the controller creates a
// StorageClass. The limit is necessary because a node can report any names.
const maxPools = 32

// poolName matches a valid name of a pool. The name of a pool is the name of its Volume document.
var poolName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// annotation returns the key of an annotation for a pool: "KEY.POOL" for the key KEY and the pool
// POOL, or KEY itself for the pool on DATA.
func annotation(of, pool string) string {
	if pool == "" {
		return of
	}
	return of + "." + pool
}

// IsRequest reports whether key is the key of an annotation of a Node with which the controller
// requests that the node destroys or copies volumes, in any of its pools.
func IsRequest(key string) bool {
	return slices.ContainsFunc([]string{ObsoleteAnnotation, CopiesAnnotation}, func(of string) bool {
		return key == of || strings.HasPrefix(key, of+".")
	})
}

// reportedPools returns the sorted names of the named pools that have a report in the annotations
// of a Node.
func reportedPools(annotations map[string]string) (names []string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if pool, ours := strings.CutPrefix(key, ReportAnnotation+"."); ours && poolName.MatchString(pool) {
			names = append(names, pool)
		}
	}
	return names
}

// placeOf returns the place of a pool: "hostname/pool" for a named pool, or "hostname" for the pool
// on DATA. Hostnames have no slash, so places are unique.
func placeOf(hostname, pool string) string {
	if pool == "" || hostname == "" {
		return hostname
	}
	return hostname + "/" + pool
}

// splitPlace returns the hostname and the name of the pool from a place. The name is empty for the
// pool on DATA.
func splitPlace(place string) (hostname, pool string) {
	hostname, pool, _ = strings.Cut(place, "/")
	return hostname, pool
}

// readNodes returns a Node value for each pool of a Node object. The list is empty if the hostname
// label differs from the name of the Node.
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

// sameNodes reports whether two results of readNodes are equal. It returns false if list a is
// empty.
func sameNodes(a, b []Node) bool { return len(a) > 0 && slices.EqualFunc(a, b, sameNode) }

// unreported returns each named pool that has volumes or snapshots in the API, and whose node
// exists but has not reported the pool. Each result has a problem, so Step does not consider the
// data lost: they may still exist.
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

// newClasses returns a CreateClass for each reported pool that has no StorageClass. A deleted class
// is created again while a node reports its pool.
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

// writeClass returns the StorageClass of a pool. It is like the class of the pool on DATA, but not
// the default class.
func writeClass(o CreateClass) *storagev1.StorageClass {
	class := bootstrap.NewLocalClass(o.Name)
	class.Parameters = map[string]string{parameterPool: o.Pool}
	return class
}

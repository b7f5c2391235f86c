// Package overview decides on the objects that describe the cluster as a whole: ClusterHealth and
// Component (docs/decisions/0108-health-and-repair.md). It is pure, apart from Read: package
// machines reads the report of machined and the objects, and makes the changes.
//
// The values of other machines are claims. machined has cut the texts and removed control
// characters; this package bounds the numbers of entries.
package overview

// Package overview computes the objects that describe the cluster as a whole: one ClusterHealth,
// and a Component for each component and add-on (docs/decisions/0108-health-and-repair.md). Only
// Read has side effects. Package machines reads the objects and performs the changes.
//
// The report contains values that other machines state about themselves. They are not trusted:
// machined limits the lengths of texts and removes control characters, and this package limits the
// numbers of entries.
package overview

// Package addons keeps the add-ons of the configuration in the cluster, beside the other
// controllers: it applies their objects by server-side apply, puts back what is lost, takes away
// what is no longer wanted, and says how they are.
//
// Each add-on acts as an identity of its own, a service account of the namespace orlop-addons that
// is impersonated and need not exist, with exactly the rights that its document states (rights.go).
// So it is the API server that refuses what is not stated, and a Role among the objects cannot hand
// out more. Taking away is done by a second identity, which may only do that, and only to what is
// in the inventory.
//
// Everything follows from three values: the documents (a file that machined replaces,
// nodespec.Addons, and beside it the artefacts that they name, which machined brings into a folder;
// they are unpacked here, package artifact), the record of each add-on, which holds its inventory
// (a ConfigMap in orlop-addons, record.go), and the live objects. object.go reads manifests,
// stage.go orders them, health.go judges objects; pass.go looks at one add-on once, without waiting
// for anything, run.go repeats that, and before.go has an add-on go back to the manifests that were
// healthy.
//
// An object belongs to the add-on that its label orlop.dev/addon names. One that is there without
// the label is somebody else's and is refused, the cluster's own among them.
//
// docs/decisions/0035-addons.md says why it is as it is.
package addons

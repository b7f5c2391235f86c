// Package addons reconciles the add-ons of the configuration with the cluster, beside the other
// controllers. It applies their objects by server-side apply, restores lost objects, prunes objects
// that are no longer wanted, and reports the state of each add-on.
//
// Each add-on acts with a separate identity, a service account of the namespace orlop-addons that
// is impersonated and need not exist. The identity has exactly the rights that the document of the
// add-on states (rights.go). So the API server itself rejects any other operation, and a Role among
// the objects of an add-on cannot grant rights that the add-on lacks. A second identity prunes.
// That identity may only read and delete the objects that the add-on has created (the inventory),
// and list the resources of custom resource definitions among them.
//
// Three inputs determine all operations:
//   - the documents: a file that machined replaces (nodespec.Addons), and the artifacts that the
//     documents name. machined puts the artifacts into a directory, and package artifact unpacks
//     them here;
//   - the record of each add-on, which holds its inventory (a ConfigMap in orlop-addons,
//     record.go);
//   - the live objects.
//
// object.go reads manifests, stage.go orders them, health.go judges the health of objects.
// reconcile.go makes a single pass over an add-on, without waiting, and run.go repeats it.
// rollback.go returns an add-on to its last healthy manifests.
//
// An object belongs to the add-on that its label orlop.dev/addon names. An existing object without
// the label, such as an object of the cluster itself, belongs to another owner, and the add-on does
// not take it over.
//
// docs/decisions/0035-addons.md, 0064-addon-reconciliation.md and 0065-addon-artifacts.md contain
// the reasons.
package addons

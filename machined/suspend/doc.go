// Package suspend removes a Kubernetes object that blocks the API, and creates it again later
// (docs/decisions/0055-suspend.md).
//
// The orchestrator performs each step of both operations (orchestrator/breakglass), with a
// certificate that this package issues for the step. The package stores the object on STATE before
// it removes the object, so an interrupted call does not lose it.
//
// The package owns the stored objects. It does not authorize the caller, and it does not search for
// the objects that block the API; orchestrator/extensions does that.
package suspend

// Package suspend removes a Kubernetes object that blocks the API, and creates it again later
// (docs/decisions/0055-suspend.md).
//
// The orchestrator performs both (orchestrator/breakglass) with a certificate that the package
// issues for the call. The object is stored on STATE before it is removed, so that an interrupted
// call never loses it.
//
// The package owns the stored objects. It neither authorizes the caller nor finds the objects that
// block the API: orchestrator/extensions finds them.
package suspend

// Package redfish operates real machines through their management controllers (BMC) by Redfish
// (DMTF DSP0266), with the library gofish.
//
// The controller is trusted by its certificate alone: by the fingerprint of its key, or by a CA.
// There is no mode without a check. Requests go to the configured host only, whatever a redirect or
// a link in an answer says. An operation has a deadline (2 minutes by default) and at most 64
// requests; a request has a deadline of 30 seconds, and an answer at most 4 MiB. Texts of the
// controller are shown in printable ASCII, at most 300 characters.
//
// Each operation authenticates by HTTP Basic authentication (over TLS), so it leaves no session on
// the controller, which has few of them.
//
// # Limits
//
// Operations that a controller performs as a task (status 202) count as accepted. Boot overrides
// are those of ComputerSystem.Boot; systems that change them in a settings resource are tried, too.
// Controllers without Redfish are not supported.
package redfish

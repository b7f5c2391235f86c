// Package redfish implements machineprovider.Machine for physical machines. It calls their
// management controllers (BMC) by Redfish (DMTF DSP0266), with the library gofish.
//
// The package identifies a controller by its certificate: by the fingerprint of its key, or by the
// CA. There is no mode without this check. The package sends requests only to the configured host,
// even if a redirect or a link names another host. An operation has a deadline of 2 minutes by
// default and at most 64 requests. A request has a deadline of 30 seconds, and its answer at most 4
// MiB. Errors show at most 300 characters of a text of the controller, in printable ASCII.
//
// Each request has HTTP Basic authentication over TLS. So the package occupies none of the few
// sessions of a controller.
//
// # Limits
//
// An operation that the controller performs as a task (status 202) counts as accepted. The package
// sets boot overrides in ComputerSystem.Boot. If a system expects them in a settings resource, the
// library tries this resource, too. Controllers without Redfish are not supported.
package redfish

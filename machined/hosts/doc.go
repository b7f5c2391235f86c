// Package hosts has both sides of the inventory (docs/decisions/0103-inventory.md), the claims of
// waiting machines (docs/decisions/0107-claims.md), and their approval by rules
// (docs/decisions/0120-approval-rules.md).
//
//	reporter.go  a machine without a configuration sends its inventory
//	firmware.go  the part of the inventory that the firmware tells
//	register.go  a control-plane machine lists the machines
//	claims.go    a control-plane machine admits and removes claimed machines
//	rules.go     a control-plane machine approves machines by signed rules
//
// A machine that reports trusts no answer: only a configuration that its own operator has signed
// changes it (ReporterDeps.Adopt). A machine that lists stores nothing; it publishes the list, and
// writes it to a file of the controllers.
package hosts

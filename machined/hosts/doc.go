// Package hosts has both sides of the inventory (docs/decisions/0103-inventory.md), the claims of
// waiting machines (docs/decisions/0107-claims.md), and their approval by rules
// (docs/decisions/0120-approval-rules.md).
//
//	config.go        the configurations with which the package acts
//	reporter.go      a machine without a configuration sends its inventory
//	firmware.go      the part of the inventory that the firmware provides
//	adopt.go         a machine without a configuration accepts one that its operator has signed
//	register.go      a control-plane machine lists the machines
//	claims.go        a control-plane machine admits and removes claimed machines
//	remove.go        the removal of a claimed machine
//	rules.go         a control-plane machine approves machines by signed rules
//	ledger.go        the machines that the ledger knows
//	orchestrator.go  the list of the controllers, and the command for expressions
//
// A machine that sends its inventory does not trust the answers: only a configuration that its own
// operator has signed changes the machine (adopt.go). A machine that lists others stores nothing;
// it publishes the list, and writes it to a file of the controllers.
package hosts

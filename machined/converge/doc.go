// Package converge leads the domains of the machine to a configuration. It holds the table of
// domains: the dry run prints the operations for the next configuration, drift prints the
// operations for the active configuration, and the reconciliation performs them.
//
// The reconciliation runs each time the configuration, the addresses, the membership, the
// artifacts, the ledger, the LLDP labels or the volumes change, and periodically. Its result is
// State: which operations of which configuration failed. A call can wait for the result
// (AwaitConverged).
//
// The package reads no facts of its own: machined collects them (Deps.APIFacts, Deps.NodeFacts),
// and machined/nodeplan derives the desired state of all domains from configuration and facts. Only
// the domains api, credentials and services depend on the ledger and on STATE. The package neither
// stores a configuration nor decides which one is active.
package converge

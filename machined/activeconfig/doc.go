// Package activeconfig owns the active configuration of the machine: its origin, its trial, the
// history, and the return from a configuration without an address.
//
// During a trial the previous configuration is stored beside the new configuration. It becomes
// active again unless a client confirms the new configuration over a new connection
// (docs/decisions/0023-trials.md). A configuration with which the machine never had an address
// cannot be corrected over the network: the machine returns to the last configuration with an
// address (docs/decisions/0056-lockout.md).
//
// Start makes the configuration of the boot active, Activate and Stage the checked configuration of
// a client. State is the topic "configuration".
//
// A machine without a configuration adopts the configuration on a labelled medium (AdoptSeed).
//
// The package decides neither whether a configuration is permitted (machined/transition), nor does
// it store files itself (machined/configstore). The domains converge to the configuration by
// themselves (machined/converge).
package activeconfig

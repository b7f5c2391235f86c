// Package activeconfig owns the active configuration of the machine: its origin, its trial, the
// history, and the return from a configuration without an address.
//
// During a trial the previous configuration is stored beside the new configuration. It becomes
// active again unless a client confirms the new configuration over a new connection
// (docs/decisions/0023-trials.md). A configuration with which the machine never had an address
// cannot be corrected over the network: the machine returns to the last configuration with an
// address (docs/decisions/0056-lockout.md).
//
// Start makes the configuration of the boot active. Activate makes the checked configuration of a
// client active, and Stage stores it for the next boot. State is the topic "configuration".
//
// A machine without a configuration adopts the configuration on a labelled medium (AdoptSeed).
//
// Other packages decide whether a configuration is permitted (machined/transition), store the files
// (machined/configstore), and converge the domains to the active configuration (machined/converge).
package activeconfig

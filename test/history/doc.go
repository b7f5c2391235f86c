// Command history lets clients write to a cluster of several control-plane machines, disturbs the
// machines, and checks the history of the clients (test/register). docs/history.md describes the
// method and the figures.
//
//	main.go      flags, and one round after the other
//	faults.go    the faults of the machines
//	report.go    the format of the file
package main

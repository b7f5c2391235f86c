// Command history lets clients write to a cluster of several control-plane machines, disturbs the
// machines, and checks the clients' history for linearizability: is there an order of all
// operations, each between its call and its answer, in which every answer is right? In that case no
// acknowledged write was lost, and none was applied twice. docs/history.md describes the method and
// the figures.
//
//	main.go      flags, and one round after the other
//	model.go     the valid answers of a register, and the check
//	clients.go   the clients that read and write
//	faults.go    the faults of the machines
//	report.go    the format of the file
package main

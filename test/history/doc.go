// Command history has clients write to a cluster of several control-plane machines, disturbs the
// machines, and judges what the clients saw: is there an order of all operations, each between its
// call and its answer, in which every answer is right (linearizability)? Then no acknowledged write
// was lost, and none was seen twice. docs/history.md says how, and what its figures mean.
//
//	main.go      flags, and one round after the other
//	model.go     what a register may answer, and the judge
//	clients.go   who reads and writes
//	faults.go    what is done to the machines
//	report.go    the form of the file
package main

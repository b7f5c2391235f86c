// Command history checks a cluster of several control-plane machines while machines fail. Clients
// write to the cluster, the command disturbs machines, and then it checks that the history of all
// operations is linearizable (test/register). docs/history.md describes the method and the figures.
//
//	main.go      flags, and the order of the rounds
//	faults.go    the faults of the machines
//	report.go    the format of the file
package main

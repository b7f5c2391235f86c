// Package rotation replaces the CAs and the encryption key of a cluster while the cluster serves
// (docs/decisions/0027-ca-rotation.md). Each machine goes through four states, and no two machines
// are more than one state apart:
//
//	stateBefore  accept →  accepted   issue →  issues     drop →  newOnly
//	old issues             old issues          new issues         new issues
//	                       new accepted        old accepted
//
// The state of a machine follows from its configuration. The new value is in the file of secrets.
// There is no other record, so an interrupted command continues with the remaining steps.
//
// state.go plans the steps. ca.go and key.go compute the configuration of a machine one state
// later. These three files call no machine. rollout.go performs the steps, machine by machine.
package rotation

// Package claims decides which waiting machines become workers, and which workers leave the cluster
// (docs/decisions/0107-claims.md). It is pure. Package machines reads the objects, performs the
// changes, and gives the list of claims to machined.
//
// A MachineDeployment has one MachineSet, which has the same name. This table shows the states of a
// machine in order:
//
//	OrlopHost                   Machine           in the list for machined   member of the cluster
//	waits, is approved          -                 -                          no
//	spec.claim                  -                 -                          no
//	spec.claim                  Provisioning      claim                      no
//	deleted                     Running           -                          yes
//	-                           being deleted     removal                    yes
//	-                           being deleted     removal                    no
//	with another key: waits     -                 -                          no
//
// The OrlopHost of a machine with a power switch is not deleted when the machine joins. When the
// machine has left, giveBack returns the host to the inventory before the finalizer of the Machine
// is removed, and the machine is switched off (package standby). If a set finds no waiting host,
// hosts that are off are switched on for the set (docs/decisions/0125-power-of-claims.md).
//
// A claim is a write to the OrlopHost that fails if the object has changed, so a host has at most
// one claim. A Machine has a finalizer. Plan removes the finalizer when the machine is no member of
// the cluster and cannot join any more.
package claims

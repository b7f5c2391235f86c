// Package claims decides which machines of the inventory become workers, and which workers leave
// the cluster (docs/decisions/0107-claims.md). It is pure: package machines reads the objects,
// makes the changes, and passes the list of claims to machined.
//
// A MachineDeployment has one MachineSet, of its name. The way of a machine:
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
// The claim of a host is a write that fails if the object has changed, so a host has a single
// claim. A Machine has a finalizer, which ends when the machine is no member of the cluster and
// cannot join any more.
package claims

// Package membership decides which machines belong to the cluster: which client certificates are
// valid (docs/decisions/0021), how a worker joins and renews (0028), how it is removed (0062), how
// the control plane votes (0063), and how a worker requests a ticket (0044).
//
// decide.go has the table of all answers of a control-plane machine. The scripts in testdata show
// the machines of a cluster together: joins, lost machines, stolen tickets, removals.
//
// # Parts
//
//   - Ledger: the machine's trust.Ledger on STATE, with the issued certificates, the revocations
//     and the members. trust.Ledger holds the rules of the merge and of a vote.
//   - Peers: the connections to the other machines of the cluster.
//   - Server: the answers to operators, workers and other control-plane machines.
//   - Requests: the join requests that wait for an operator, in memory.
//   - NodeGC: the deletion of the Nodes of removed machines.
//   - Sync: the poll of the other machines for revocations and members.
//   - Worker: the certificates of a worker, their renewal, and the end of its pods after a removal.
//
// # Out of scope
//
// The package listens on no port and authenticates no caller: apid does both, and passes the
// caller's certificate as an api.Caller. It writes neither apid's files nor the API server's
// (Deps.Enforce), starts no process, deletes no Node by itself (Deps.DeleteNodes) and stops no
// service (Removal.StopPods). It uses neither Kubernetes nor etcd: both may have failed when a
// machine has to be removed.
package membership

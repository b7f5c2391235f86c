// Package credentials maintains the certificates, keys and tokens of the processes on this machine.
// Each process has its own directory below /run, which only the user of the process can read, with
// exactly the identities that the process needs (pkg/nodespec names the files).
//
// The configuration contains the CAs of the cluster. The machine issues the leaf certificates
// itself, on a tmpfs, and they never leave the machine. The machine issues them at each boot, after
// two thirds of their TTL, and when their content changes (a new address). The processes reload
// them.
//
// The package does not decide the permissions of an identity (Kubernetes RBAC does, see
// orchestrator) and does not handle certificates of operators.
package credentials

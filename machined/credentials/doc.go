// Package credentials keeps the certificates, keys and tokens of the processes on this machine:
// each process has a folder of its own under /run, readable by its user alone, with just the
// identities it needs (pkg/nodespec names the files).
//
// The cluster's authorities come with the configuration; the leaves are issued here, on the
// machine, and never leave it. They live on a tmpfs and are made anew at each boot, and again when
// two thirds of their life are over or when what they should say changes (a new address). The
// processes reload them by themselves.
//
// The package does not decide who may do what with an identity (that is Kubernetes' RBAC, see
// orchestrator) and does not handle operators' certificates.
package credentials

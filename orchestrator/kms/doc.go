// Package kms lets the API server encrypt Secrets with a key that only a key manager has: a key of
// the secrets engine Transit of HashiCorp Vault or OpenBao (docs/decisions/0116-kms.md). It is the
// plugin of KMS v2 of Kubernetes (k8s.io/kms): the API server encrypts Secrets with keys of its
// own, and the plugin encrypts these keys.
//
// Service serves the plugin on a Unix socket in the directory of the API server, which no other
// user can open. Run is the component of the process "api"; a command that re-encrypts Secrets
// serves the plugin for itself (ForCommand), because the API server need not run. The package
// stores nothing, and reads the credentials again when their file changes.
package kms

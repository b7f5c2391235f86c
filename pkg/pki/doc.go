// Package pki creates and parses the certificates of a machine and of a cluster: CAs, the leaf
// certificates that they issue, and the keys in PEM.
//
// All keys are ECDSA on P-256 with SHA-256: RSA keys cost seconds of CPU on a small machine, and
// every client of Kubernetes supports P-256. The package holds no state, reads no files and uses
// the time that the caller passes (a zero Now means the present time). machined decides on the
// issue of certificates.
//
// # Clocks
//
// A machine without a battery-backed clock starts with the build time of its image, and rejects a
// certificate that becomes valid later. Therefore the validity of a CA begins CABackdate before its
// creation, and a leaf can do the same (Spec.Backdate). A later start of validity would protect
// nothing, because the key did not exist before.
package pki

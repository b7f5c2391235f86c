// Package pki creates and parses the certificates of a machine and of a cluster: CAs, leaf
// certificates that they issue, and keys in PEM.
//
// All keys are ECDSA on P-256 with SHA-256. Every client of Kubernetes supports P-256, and the
// creation of an RSA key takes seconds on a small machine. The package holds no state and reads no
// files. The caller passes the time; a zero Now means the present time. machined decides which
// clients get a certificate.
//
// # Clocks
//
// Without a battery-backed clock, the clock of a machine starts at the build time of its image. A
// certificate with a later NotBefore would be invalid on this machine. Therefore NotBefore of a CA
// is CABackdate before its creation, and NotBefore of a leaf can be earlier, too (Spec.Backdate). A
// later NotBefore would not improve security, because the key did not exist before.
package pki

// Package pki creates and parses the certificates of a machine and of a cluster: CAs, leaf
// certificates that they issue, and keys in PEM.
//
// All keys are ECDSA on P-256 with SHA-256. Every client of Kubernetes supports P-256, and the
// creation of an RSA key takes seconds on a small machine. The package holds no state and reads no
// files. The caller passes the time; a zero Now means the present time. machined decides who gets a
// certificate.
//
// # Clocks
//
// Without a battery-backed clock, the clock of a machine starts at the build time of its image. A
// certificate with a later NotBefore would be invalid on this machine. Therefore NotBefore of a CA
// is CABackdate before its creation, and a leaf can have the same (Spec.Backdate). A later
// NotBefore would not improve security, because nobody had the key before its creation.
package pki

// Package pki makes and reads the certificates of a machine and of a cluster: certificate
// authorities, the leaf certificates they issue, and the keys in PEM.
//
// Everything is ECDSA on P-256 with SHA-256: RSA keys cost seconds of CPU on a small machine, and
// every client of Kubernetes understands P-256. The package holds no state, reads no files and
// looks at no clock but the one it is given (a zero Now means the present time). It does not decide
// what is issued to whom; that is machined's part.
//
// # Clocks
//
// A machine without a battery-backed clock starts with the time at which its image was built, and a
// certificate that begins later than that is refused. A CA therefore begins CABackdate before it
// was made, and a leaf may do likewise (Spec.Backdate); the beginning of a certificate whose key
// did not exist then protects nobody.
package pki

// Package secureboot reads the state of UEFI Secure Boot, and checks whether the firmware would
// start a boot image:
//
//	variables.go    the state and the databases in the variables of the firmware
//	lists.go        the signature lists of a database
//	image.go        the Authenticode digest and the signatures of a PE image
//	signature.go    a signature: PKCS #7 with RSA and SHA-256
//	accept.go       the decision, as the firmware makes it
//	probe_linux.go  the question of PID 1 to the process that makes the decision
//	child_linux.go  this process
//
// The process has no privileges: it parses certificates and signatures, and PID 1 parses only
// lists of fixed fields. The package writes no variable, signs nothing, and does not decide what
// follows from a refusal.
package secureboot

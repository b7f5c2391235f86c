// Package secureboot reads the state of UEFI Secure Boot, and checks whether the firmware would
// start a boot image:
//
//	variables.go    the state and the databases in the variables of the firmware
//	lists.go        the signature lists of a database
//	image.go        the Authenticode digest and the signatures of a PE image
//	signature.go    a signature: PKCS #7 with RSA and SHA-256
//	accept.go       the decision, as the firmware makes it
//	probe_linux.go  the request of PID 1 to the checking process
//	child_linux.go  the checking process
//
// The checking process parses certificates and signatures, and has no privileges. PID 1 parses only
// signature lists, which have fixed fields. The package writes no variable and signs nothing. The
// caller decides what to do after a refusal.
package secureboot

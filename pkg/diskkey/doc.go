// Package diskkey protects the keys of the encrypted partitions STATE and DATA:
//
//	policy.go    under which PCR values a TPM releases a key, and the signatures of boot images
//	predict.go   the PCR values of the next boot
//	tpm.go       seals a key with a TPM, and unseals it
//	recovery.go  the recovery key, encrypted to the operator
//	header.go    the header of an encrypted partition (LUKS2), and the metadata in it
//	luks.go      the command lines of cryptsetup
//	child_linux.go, ask_linux.go  the process that talks to the TPM
//
// Each partition has a random unlock key of 32 bytes, which opens key slot 0 of its header. The TPM
// encrypts ("seals") the unlock key and releases it under a policy only. A recovery key opens key
// slot 1. The header holds both in encrypted form, so the partition describes itself, and a boot
// needs no other file.
//
// The package decides neither which partitions are encrypted nor when a partition is opened;
// machined/disk does.
package diskkey

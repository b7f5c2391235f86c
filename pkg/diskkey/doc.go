// Package diskkey protects the keys of the encrypted partitions STATE and DATA:
//
//	policy.go    under which PCR values a TPM releases a key, and the signatures of boot images
//	predict.go   the PCR values of the next boot
//	tpm.go       seals a key with a TPM, and unseals it
//	binding.go   the secret that binds DATA to its STATE, and the passphrases
//	recovery.go  the recovery key, encrypted to the operator
//	header.go, area.go  which headers (LUKS2) are accepted, and the metadata in them
//	luks.go      the command lines of cryptsetup
//	child_linux.go, ask_linux.go  the process that talks to the TPM
//
// Each partition has a random unlock key of 32 bytes. The TPM encrypts ("seals") the unlock key and
// releases it under a policy only. The passphrase of key slot 0 or 2 is derived from the unlock key
// and the label of the partition; that of DATA also from a secret on STATE (Binding). A recovery
// key is the passphrase of key slot 1. The header holds the sealed unlock key and the encrypted
// recovery key.
//
// The package decides neither which partitions are encrypted nor when a partition is opened;
// machined/disk does.
package diskkey

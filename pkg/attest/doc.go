// Package attest proves the booted version of a machine with its TPM 2.0, and checks the proof:
//
//	eventlog.go     the log of the firmware, and the PCR values that follow from it
//	evidence.go     keys, challenge and quote, and their verification
//	release.go      the measurements of a version, computed from its boot image
//	compare.go      the differences between a proof and the versions, in words
//	tpm.go          the commands to the TPM
//	probe_linux.go  in PID 1: the request to the process that talks to the TPM
//	child_linux.go  the process that talks to the TPM
//
// A PCR is a register of the TPM to which the firmware, the boot loader and the stub of the boot
// image add digests before they start the next program; no program can undo an addition. A quote is
// the signature of the TPM on the values of the PCRs.
//
// The process that talks to the TPM has no privileges, because it parses the untrusted answers of
// the TPM. PID 1 limits the size of this process's output. The package extends no PCR, stores no
// key in the TPM, and does not decide what happens to a machine with differences.
package attest

// Package wear reads the wear and the errors that disks report about themselves (S.M.A.R.T.), and
// warns before they fail (docs/decisions/0110-wear.md).
//
//	decode.go          the logs of NVMe and ATA disks, in pages of 512 bytes
//	judge.go           the warnings, from a log and the record of earlier errors
//	read_linux.go      reads the pages from a disk
//	controller.go      reads all disks once an hour, and publishes the result
//	record.go          the record on STATE
//
// A hostile disk can choose every byte of its log. The decoders read fixed offsets of a page, and
// return numbers only. A disk that does not answer occupies a thread, and is not read again until
// it answers. The kernel answers requests for a log to PID 1 only, so no sandboxed process reads
// it.
//
// The package changes no disk, starts no self-tests, and does not read disks behind RAID
// controllers, SCSI disks and USB disks.
package wear

// Package wear reads the wear and the errors that disks report about themselves (S.M.A.R.T.), and
// warns before they fail (docs/decisions/0110-wear.md).
//
//	decode.go          decodes the log pages of NVMe and ATA disks, of 512 bytes each
//	judge.go           derives the warnings from a log and the record of earlier errors
//	read_linux.go      reads the pages from a disk
//	controller.go      reads all disks once an hour, and publishes the result
//	record.go          stores the record on STATE
//
// A hostile disk can choose every byte of its log, so the decoders read fixed offsets of a page and
// return numbers only. A disk that does not respond occupies a thread, and it is not read again
// until this read ends. No sandboxed process reads the logs, because the kernel permits the
// commands only to a privileged process such as PID 1.
//
// The package changes no disk, starts no self-tests, and does not read disks behind RAID
// controllers, SCSI disks and USB disks.
package wear

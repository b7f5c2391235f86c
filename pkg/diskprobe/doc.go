// Package diskprobe examines the content of a foreign disk in a process that has no permission
// except to read this disk.
//
// An attacker can choose every byte of a disk: a memory stick, virtual media, the volume of a pod.
// Code that parses these bytes can hang or allocate without limit, so PID 1 never runs it:
//
//	list_linux.go     lists the disks from sysfs, without opening them
//	probe_linux.go    opens a disk in PID 1 and starts its examination
//	prober.go         decides when a disk is examined, for how long, and when after a failure
//	child_linux.go    the process: its own user, no capability, Landlock, seccomp, limits;
//	                  it reads file descriptors that PID 1 opened read-only
//	examine_linux.go  the examination
//	result.go         the result and its validation
//
// After a failed examination, a disk is treated as a disk with data, never as blank.
//
// The package does not decide how a disk may be used, and mounts no file system.
package diskprobe

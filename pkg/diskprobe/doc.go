// Package diskprobe examines what lies on a disk that is not the machine's own, in a process that
// can do nothing else.
//
// An attacker can choose every byte of a disk: a memory stick, virtual media, the volume of a pod.
// Code that parses such bytes may not return, or not stop to allocate, so PID 1 never runs it:
//
//	list_linux.go     which disks there are, from sysfs; nothing is opened
//	ask_linux.go      how PID 1 opens a disk and has it examined
//	prober.go         when a disk is examined, for how long, and when again after it failed
//	child_linux.go    the process: own user, no capability, Landlock, seccomp, limits; reads file descriptors that PID 1 has opened read-only
//	examine_linux.go  what it reads
//	answer.go         what it may answer
//
// A disk whose examination fails in whatever way holds data, and is never blank.
//
// The package does not judge what may be done with a disk, and mounts nothing.
package diskprobe

// Package bootenv reads the environment in which the boot loader starts the system:
//
//	commandline.go  the kernel command line
//	variables.go    the firmware variables of the boot loader and the UKI
//	medium.go       names that the programs share if the system runs from a boot medium
//	id.go           the identifier of the boot
//
// It mounts no file system, writes no variables, and does not decide how the system boots.
package bootenv

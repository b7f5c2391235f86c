package bootenv

// Names that the programs of a system share when it runs from a boot medium, before it is installed
// on a disk. The imager makes the boot image, init opens it, and machined reports it and can
// install it.
const (
	// MediumArgument is the kernel command line parameter for the location of the root:
	// "orlop.medium=memory". Without it, init looks for the root on the disks.
	MediumArgument = "orlop.medium"
	// MediumEnv is the environment variable by which init passes the value to machined.
	MediumEnv = "ORLOP_MEDIUM"
	// MediumMemory is the only value: the boot image contains the whole root, and the root stays in
	// memory.
	MediumMemory = "memory"
)

// MediumDir is the directory of the boot image's initramfs that contains the files of the system.
// They have the same names below paths.System after the installation.
const MediumDir = "/system"

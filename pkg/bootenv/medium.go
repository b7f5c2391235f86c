package bootenv

// Names for a system that runs from a boot medium, before it is installed on a disk. Three programs
// share them: the imager makes the boot image, init opens the root in it, and machined reports the
// boot medium and can install the system.
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
// After the installation, the files have the same names below paths.System.
const MediumDir = "/system"

// Package bootmedium names what the parts of a system agree on that runs from the medium it was booted
// from, before it is installed on a disk. The imager makes such a boot image, init opens it,
// machined says so and can install it.
package bootmedium

const (
	// Argument is the kernel command line parameter that says where the root comes from:
	// "orlop.medium=memory". Without it, the root is looked for on the disks.
	Argument = "orlop.medium"
	// Env is the variable by which init hands the value on to machined.
	Env = "ORLOP_MEDIUM"
	// Memory is the one value: the root came whole with the boot image, and stays in memory.
	Memory = "memory"
)

// Dir is where the boot image's initramfs holds the parts of the system, under the names that
// they have below paths.System later.
const Dir = "/system"

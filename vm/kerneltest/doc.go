// Package kerneltest runs a Go test binary under the product's kernel. It packs the binary, its
// testdata directory, the required kernel modules and a small init into an initramfs. QEMU boots
// the kernel with this initramfs directly, without firmware, and the tests start after about three
// seconds. The package returns the output of the tests and their exit status. With `go test -exec`
// the tests need no changes:
//
//	CGO_ENABLED=0 go test -exec 'build/bin/qemu kernel-test -kernel DIR' ./machined/disk
//
// The tests run as root in a separate machine. The machine has blank disks /dev/vda, /dev/vdb, …
// and a NIC eth0. The NIC is on a closed network with DHCP, DNS and NTP. The environment variable
// ORLOP_KERNEL_TEST=1 tells a test that it runs in this machine.
//
// QEMU with several emulated processors sometimes breaks the kernel of the guest (vm.KernelBreak).
// If no test has failed before such a break, the program runs a second time. go test hides the
// output of a program that passes, so -repeats FILE stores the reason in a file. Both runs together
// must end within go test's -timeout.
//
// The files of the guest are in memory and are lost when the guest ends. So a test that rewrites
// golden files has to run on the host. machined does not run in the guest.
package kerneltest

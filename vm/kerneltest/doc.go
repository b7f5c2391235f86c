// Package kerneltest runs a Go test binary under the product's kernel: it packs the binary, its
// testdata directory, the required kernel modules and a small init into an initramfs, boots that
// directly in QEMU (no firmware, about three seconds to the test), and returns the output of the
// tests and their exit status. With `go test -exec` the tests need no changes:
//
//	CGO_ENABLED=0 go test -exec 'build/bin/qemu kernel-test -kernel DIR' ./machined/disk
//
// The tests run as root in a separate machine, with blank disks /dev/vda, /dev/vdb, … and a NIC
// eth0 on a closed network whose gateway answers DHCP, DNS and NTP. The variable
// ORLOP_KERNEL_TEST=1 marks this environment.
//
// An emulator with several processors sometimes breaks the kernel of the guest (vm.KernelBreak).
// The program then runs a second time, unless a test has failed. go test hides the output of a
// program that passes, so -repeats FILE stores the reason. The two runs share the time of go test's
// -timeout.
//
// The guest's files are in memory and end with it: a test that rewrites golden files has to run on
// the host. The init of the machine is minimal; machined is not started.
package kerneltest

// Package kerneltest runs a Go test binary under the product's kernel: it packs the binary, its
// testdata folder, the kernel modules it needs and a small init into an initramfs, boots that
// directly in QEMU (no firmware, about three seconds to the test), and hands back what the tests
// printed and their exit status. With `go test -exec` the tests need not know of it:
//
//	CGO_ENABLED=0 go test -exec 'build/bin/qemu kernel-test -kernel build/qemu/kernel' ./machined/disk
//
// The tests run as root in a machine of their own, with blank disks /dev/vda, /dev/vdb, … and a NIC
// eth0 on a closed network whose gateway answers DHCP, DNS and NTP. The variable
// ORLOP_KERNEL_TEST=1 tells them so.
//
// The guest's files are in memory and go with it: a test that rewrites goldens has to run on the
// host. The machine has no PID 1 worth the name; machined is not started.
package kerneltest

package kmod

import "testing"

// BenchmarkDevices measures looking for the devices of the machine that it runs on, which is what
// cold plugging costs at boot beside loading. Under the product kernel in QEMU (q35, software
// emulation): see vm/kerneltest, with -test.bench.
func BenchmarkDevices(b *testing.B) {
	for b.Loop() {
		aliases, err := Devices("/sys")
		if err != nil || len(aliases) == 0 {
			b.Fatalf("%q, %v", aliases, err)
		}
	}
}

package kmod

import "testing"

// BenchmarkDevices measures the search for the devices of this machine. At boot, cold plugging
// consists of this search and of the loading of the modules. vm/kerneltest with -test.bench runs it
// under the product kernel in QEMU (q35, software emulation).
func BenchmarkDevices(b *testing.B) {
	for b.Loop() {
		aliases, err := Devices("/sys")
		if err != nil || len(aliases) == 0 {
			b.Fatalf("%q, %v", aliases, err)
		}
	}
}

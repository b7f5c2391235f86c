package host

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// link creates symbolic links in the sysfs of a fake kernel.
func link(t *testing.T, k *Kernel, links map[string]string) {
	t.Helper()
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(k.sys, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSensors reads the sensors of two chips from files in the kernel's format. One sensor cannot
// be read, and one reports a fault.
func TestSensors(t *testing.T) {
	k := fakeKernel(t, map[string]string{
		"sys/class/hwmon/hwmon0/name": "coretemp\n", "sys/class/hwmon/hwmon0/uevent": "",
		"sys/class/hwmon/hwmon0/temp1_input": "47000\n", "sys/class/hwmon/hwmon0/temp1_label": "Package id 0\n",
		"sys/class/hwmon/hwmon0/temp1_max": "80000\n", "sys/class/hwmon/hwmon0/temp1_crit": "100000\n", "sys/class/hwmon/hwmon0/temp1_crit_alarm": "0\n",
		"sys/class/hwmon/hwmon0/temp10_input": "45500\n", "sys/class/hwmon/hwmon0/temp2_input": "no number\n",
		"sys/class/hwmon/hwmon1/name": "nct6798\n", "sys/class/hwmon/hwmon1/fan1_input": "1200\n", "sys/class/hwmon/hwmon1/in0_input": "1016\n",
		"sys/class/hwmon/hwmon1/temp7_input": "0\n", "sys/class/hwmon/hwmon1/temp7_fault": "1\n",
		"sys/class/hwmon/hwmon1/power1_average": "65500000\n", "sys/class/hwmon/hwmon1/power2_input": "1500000\n", "sys/class/hwmon/hwmon1/power2_average": "9\n",
		"sys/class/hwmon/hwmon1/intrusion0_alarm": "1\n", "sys/class/hwmon/hwmon1/in_input": "1\n",
		"sys/class/thermal/thermal_zone0/temp": "1\n",
	})
	link(t, k, map[string]string{"class/hwmon/hwmon0/device": "../../../devices/platform/coretemp.0"})
	want := []Sensor{
		{Chip: "coretemp", Device: "coretemp.0", Name: "Package id 0", Kind: "temperature", Value: 47, Unit: "°C", Max: 80, Critical: 100},
		{Chip: "coretemp", Device: "coretemp.0", Name: "temp2", Kind: "temperature", Unit: "°C", Problem: `strconv.ParseFloat: parsing "no number": invalid syntax`},
		{Chip: "coretemp", Device: "coretemp.0", Name: "temp10", Kind: "temperature", Value: 45.5, Unit: "°C"},
		{Chip: "nct6798", Name: "temp7", Kind: "temperature", Unit: "°C", Problem: "the chip reports a fault"},
		{Chip: "nct6798", Name: "fan1", Kind: "fan", Value: 1200, Unit: "rpm"},
		{Chip: "nct6798", Name: "in0", Kind: "voltage", Value: 1.016, Unit: "V"},
		{Chip: "nct6798", Name: "power1", Kind: "power", Value: 65.5, Unit: "W"},
		{Chip: "nct6798", Name: "power2", Kind: "power", Value: 1.5, Unit: "W"},
	}
	got, err := k.ReadSensors()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
}

// TestThermalZones checks that the list contains the thermal zones if no chip measures a
// temperature. The list of a machine without sensors is empty, and so is its list of PCI devices.
func TestThermalZones(t *testing.T) {
	k := fakeKernel(t, map[string]string{
		"sys/class/hwmon/hwmon0/name": "acpi_fan\n", "sys/class/hwmon/hwmon0/fan1_input": "900\n",
		"sys/class/thermal/thermal_zone0/type": "acpitz\n", "sys/class/thermal/thermal_zone0/temp": "27800\n",
		"sys/class/thermal/thermal_zone1/type": "x86_pkg_temp\n", "sys/class/thermal/cooling_device0/type": "Fan\n",
	})
	want := []Sensor{
		{Chip: "acpi_fan", Name: "fan1", Kind: "fan", Value: 900, Unit: "rpm"},
		{Chip: "acpitz", Name: "thermal_zone0", Kind: "temperature", Value: 27.8, Unit: "°C"},
		{Chip: "x86_pkg_temp", Name: "thermal_zone1", Kind: "temperature", Unit: "°C", Problem: "no such file or directory"},
	}
	if got, err := k.ReadSensors(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
	none := fakeKernel(t, nil)
	if got, err := none.ReadSensors(); err != nil || got == nil || len(got) != 0 {
		t.Errorf("%#v, %v", got, err)
	}
	if got, err := none.ReadPCI(); err != nil || got == nil || len(got) != 0 {
		t.Errorf("%#v, %v", got, err)
	}
}

func TestPCI(t *testing.T) {
	k := fakeKernel(t, map[string]string{
		"sys/bus/pci/devices/0000:00:03.0/class": "0x020000\n", "sys/bus/pci/devices/0000:00:03.0/vendor": "0x1af4\n", "sys/bus/pci/devices/0000:00:03.0/device": "0x1041\n",
		"sys/bus/pci/devices/0000:00:03.0/subsystem_vendor": "0x1af4\n", "sys/bus/pci/devices/0000:00:03.0/subsystem_device": "0x1100\n",
		"sys/bus/pci/devices/0000:00:03.0/numa_node": "1\n",
		"sys/bus/pci/devices/0000:00:00.0/class":     "0x060000\n", "sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n", "sys/bus/pci/devices/0000:00:00.0/device": "0x29c0\n",
		"sys/bus/pci/devices/0000:00:00.0/subsystem_vendor": "0x0000\n", "sys/bus/pci/devices/0000:00:00.0/numa_node": "-1\n",
		"sys/bus/pci/devices/0000:00:09.0/vendor": "0x8086\n",
	})
	link(t, k, map[string]string{
		"bus/pci/devices/0000:00:03.0/driver":      "../../../bus/pci/drivers/virtio-pci",
		"bus/pci/devices/0000:00:03.0/iommu_group": "../../../kernel/iommu_groups/7",
	})
	want := []PCIDevice{
		{Address: "0000:00:00.0", Kind: "bridge", Class: "060000", Vendor: "8086", Device: "29c0", NUMANode: -1},
		{Address: "0000:00:03.0", Kind: "network", Class: "020000", Vendor: "1af4", Device: "1041", Subsystem: "1af4:1100", Driver: "virtio-pci", NUMANode: 1, IOMMUGroup: "7"},
		{Address: "0000:00:09.0", Vendor: "8086", NUMANode: -1},
	}
	if got, err := k.ReadPCI(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
}

// TestMeasurable checks that measurable returns each file system once, and no file systems whose
// server may not answer, such as NFS and FUSE. It also checks the figures of two file systems.
func TestMeasurable(t *testing.T) {
	of := func(source, target, kind string) mount.Mount {
		return mount.Mount{Source: source, Target: target, Type: kind}
	}
	mounts := []mount.Mount{
		of("/dev/dm-0", "/", "erofs"), of("proc", "/proc", "proc"), of("tmpfs", "/run", "tmpfs"), of("tmpfs", "/tmp", "tmpfs"),
		of("/dev/vda4", "/state", "ext4"), of("/dev/vda5", "/var", "ext4"), of("/dev/vda5", "/var/lib/kubelet/pods/1/volume-subpaths/x", "ext4"),
		of("tmpfs", "/var/lib/kubelet/pods/1/volumes/secret", "tmpfs"), of("overlay", "/run/containerd/x/rootfs", "overlay"),
		of("10.0.0.1:/x", "/var/lib/kubelet/pods/1/volumes/nfs", "nfs4"), of("/dev/vdb", "/var/lib/kubelet/pods/1/volumes/csi", "xfs"), of("/dev/fuse", "/x", "fuse"),
		of("shm", "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/1/shm", "tmpfs"),
	}
	var targets []string
	for _, m := range measurable(mounts) {
		targets = append(targets, m.Target)
	}
	if want := []string{"/", "/run", "/tmp", "/state", "/var", "/var/lib/kubelet/pods/1/volumes/csi"}; !reflect.DeepEqual(targets, want) {
		t.Errorf("got %v, want %v", targets, want)
	}
	ext4 := filesystemState(mounts[4], unix.Statfs_t{Bsize: 4096, Frsize: 4096, Blocks: 1000, Bfree: 600, Bavail: 500, Files: 100, Ffree: 90})
	if want := (FilesystemState{"/state", "/dev/vda4", "ext4", 4096000, 1638400, 2048000, 100, 10}); ext4 != want {
		t.Errorf("got %+v, want %+v", ext4, want)
	}
	erofs := filesystemState(mounts[0], unix.Statfs_t{Bsize: 4096, Blocks: 10, Files: ^uint64(0), Ffree: ^uint64(0) - 300})
	if want := (FilesystemState{"/", "/dev/dm-0", "erofs", 40960, 40960, 0, 0, 300}); erofs != want {
		t.Errorf("got %+v, want %+v", erofs, want)
	}
	if list, err := NewKernel(nil).ReadUsage(); err != nil || list == nil {
		t.Errorf("ReadUsage of the kernel on which the test runs: %v, %v", list, err)
	}
}

func TestGroups(t *testing.T) {
	k := fakeKernel(t, map[string]string{
		"cgroup/cgroup.controllers": "cpu memory", "cgroup/cpu.stat": "usage_usec 3000000\n",
		"cgroup/orlop/apid/memory.current": "4096\n", "cgroup/orlop/apid/memory.max": "100663296\n", "cgroup/orlop/apid/pids.current": "9\n",
		"cgroup/orlop/apid/memory.stat": "anon 1024\nfile 2048\n", "cgroup/orlop/apid/memory.events": "oom 2\noom_kill 1\n", "cgroup/orlop/apid/cpu.stat": "usage_usec 1500000\n",
		"cgroup/orlop/memory.max": "max\n",
	})
	want := []GroupUsage{
		{Path: "/", ProcessorSeconds: 3}, {Path: "/orlop"},
		{Path: "/orlop/apid", Tasks: 9, Memory: 4096, MemoryMax: 96 << 20, Anonymous: 1024, ProcessorSeconds: 1.5, OOMKills: 1},
	}
	if got, err := k.ReadGroups(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
}

// TestSysctls checks the actual value, the desired value and the source of each listed parameter.
// The source is the system or the configuration.
func TestSysctls(t *testing.T) {
	k := fakeKernel(t, map[string]string{
		"proc/meminfo": "MemTotal: 2000000 kB\n", "proc/sys/kernel/panic": "10\n", "proc/sys/net/core/somaxconn": "128\n", "proc/sys/vm/min_free_kbytes": "70000\n",
	})
	list, err := k.ReadSysctls(Config{Sysctls: map[string]string{"net.core.somaxconn": "4096", "vm.min_free_kbytes": "70000", "kernel.panic": "0"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]SysctlState{}
	for _, s := range list {
		got[s.Name] = s
	}
	for _, want := range []SysctlState{
		{"kernel.panic", "10", "10", "system"}, {"net.core.somaxconn", "128", "4096", "configuration"}, {"vm.min_free_kbytes", "70000", "70000", "configuration"},
		{"kernel.randomize_va_space", "", "2", "system"},
	} {
		if got[want.Name] != want {
			t.Errorf("got %+v, want %+v", got[want.Name], want)
		}
	}
	if _, listed := got["kernel.yama.ptrace_scope"]; listed {
		t.Error("an optional parameter that this kernel does not have is listed")
	}
}

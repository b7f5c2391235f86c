package vm

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/vm/writelog"
)

// Files of a machine's directory.
const (
	consoleFile = "console.log"
	stderrFile  = "stderr.log"
	varsFile    = "vars.fd"
)

// inherited are the numbers of the file descriptors that QEMU inherits.
type inherited struct {
	console, qmp int
	tpm          int // 0: none
	nics         []int
	channels     []int
}

// arguments returns QEMU's arguments. It has no side effects; testdata/arguments.golden shows
// examples.
func (s MachineSpec) arguments(fds inherited, macs []macAddr) []string {
	a := []string{
		"-name", s.Name, "-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "q35,smm=" + onOff(s.secure()) + ",vmport=off", "-cpu", "max",
		"-accel", "tcg,thread=multi,tb-size=" + strconv.Itoa(s.QEMU.TranslationMiB),
		"-m", strconv.Itoa(s.MemoryMiB), "-smp", strconv.Itoa(s.CPUs), "-boot", "menu=off",
		"-chardev", "socket,id=console,fd=" + strconv.Itoa(fds.console), "-serial", "chardev:console",
		"-chardev", "socket,id=qmp,fd=" + strconv.Itoa(fds.qmp), "-mon", "chardev=qmp,mode=control",
	}
	add := func(format string, values ...any) { a = append(a, strings.Fields(fmt.Sprintf(format, values...))...) }
	a = append(a, s.bootArguments()...)
	if slices.ContainsFunc(s.Disks, func(d Disk) bool { return d.Bus == BusUSB }) {
		add("-device qemu-xhci")
	}
	for _, d := range s.Disks {
		device := string(d.Bus)
		if d.Record {
			// QEMU merges writes until they have the maximum number of buffers of the host
			// (IOV_MAX). The driver blklogwrites adds a buffer, so a merged write would fail (QEMU
			// 7.2).
			device += ",request-merging=off"
		}
		if isCD(d) {
			device += ",id=" + driveID(d.Name)
		}
		if isHardDisk(d) || d.Image != "" { // a CD drive without an image is empty
			// The drive drops the flushes of the guest. This is safe: data that QEMU has written
			// survives the end of QEMU, and the host does not lose its power in the tests.
			a = append(a, s.drive(d)...)
			device += ",drive=" + d.Name
		}
		add("-device %s,serial=%s%s", device, d.Name, s.bootIndex(d.Name))
	}
	a = append(a, s.nicArguments(fds, macs)...)
	if len(s.Channels) > 0 {
		add("-device virtio-serial-pci")
	}
	for i, name := range s.Channels {
		add("-chardev socket,id=channel%d,fd=%d", i, fds.channels[i])
		add("-device virtserialport,chardev=channel%d,name=%s", i, name)
	}
	if s.Graphics {
		add("-vga std")
	}
	if s.Watchdog {
		add("-device i6300esb -action watchdog=reset")
	}
	if fds.tpm != 0 {
		add("-chardev socket,id=tpm,fd=%d -tpmdev emulator,id=tpm0,chardev=tpm -device tpm-crb,tpmdev=tpm0", fds.tpm)
	}
	if s.QEMU.NoReboot {
		add("-no-reboot")
	}
	if !s.RTC.IsZero() {
		add("-rtc base=%s", s.RTC.UTC().Format("2006-01-02T15:04:05"))
	}
	if identity := s.smbios(); identity != "" {
		a = append(a, "-smbios", identity)
	}
	return append(a, s.QEMU.Args...)
}

// bootArguments returns QEMU's options for the kernel or the firmware.
func (s MachineSpec) bootArguments() []string {
	if s.Kernel.Image == "" {
		var secure []string
		if s.secure() {
			// The first option lets only code in System Management Mode write the flash, so the
			// kernel cannot change the keys. The second option disables suspend to memory (S3),
			// because with S3 the 64-bit firmware with System Management Mode does not start
			// (OvmfPkg/PlatformPei).
			secure = []string{"-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1"}
		}
		return append(secure, "-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+comma(s.Firmware.Code),
			"-drive", "if=pflash,unit=1,format=raw,file="+comma(filepath.Join(s.Dir, varsFile)))
	}
	a := []string{"-kernel", s.Kernel.Image}
	if s.Kernel.Initrd != "" {
		a = append(a, "-initrd", s.Kernel.Initrd)
	}
	if s.Kernel.Append != "" {
		a = append(a, "-append", s.Kernel.Append)
	}
	return a
}

// secure reports whether the firmware of the machine has Secure Boot.
func (s MachineSpec) secure() bool { return s.Kernel.Image == "" && s.Firmware.SecureBoot }

// nicArguments returns QEMU's options for the NICs and for boots from the network.
func (s MachineSpec) nicArguments(fds inherited, macs []macAddr) (a []string) {
	for i, fd := range fds.nics {
		boot := ""
		if i == 0 {
			boot = s.bootIndex(BootPXE, BootHTTP)
		}
		// With an empty romfile, the firmware uses its own driver and network stack. LACP needs
		// duplex=full: Linux uses no LACP on a link without a duplex mode
		// (drivers/net/bonding/bond_3ad.c).
		a = append(a, "-netdev", fmt.Sprintf("stream,id=net%d,server=off,addr.type=fd,addr.str=%d", i, fd),
			"-device", fmt.Sprintf("virtio-net-pci,id=nic%d,netdev=net%d,mac=%s,speed=10000,duplex=full,romfile=%s", i, i, macs[i], boot))
	}
	// The firmware tries its network boot methods one after the other, and waits a minute for the
	// server of each method. So the PXE methods that the machine does not need are disabled.
	six := s.NIC.Network != nil && s.NIC.Network.spec.IPv6.Only
	network, http := s.bootsFrom(BootHTTP) || s.bootsFrom(BootPXE), s.bootsFrom(BootHTTP) && !s.bootsFrom(BootPXE)
	if http || network && six {
		a = append(a, "-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n")
	}
	if http || network && !six {
		a = append(a, "-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n")
	}
	return a
}

// drive returns QEMU's options for a disk.
func (s MachineSpec) drive(d Disk) []string {
	if d.Record {
		// The driver blklogwrites records the guest's flushes, so the drive must not drop them
		// (cache=unsafe). The files below the driver need no flushes.
		return []string{"-blockdev", fmt.Sprintf("driver=blklogwrites,node-name=%s,discard=unmap,log-sector-size=%d,"+
			"file.driver=file,file.cache.no-flush=on,file.discard=unmap,file.filename=%s,log.driver=file,log.cache.no-flush=on,log.filename=%s",
			d.Name, writelog.SectorSize, comma(s.diskPath(d)), comma(s.logPath(d)))}
	}
	drive := fmt.Sprintf("if=none,id=%s,format=raw,cache=unsafe,discard=unmap,readonly=%s,file=%s", d.Name, onOff(d.ReadOnly), comma(s.diskPath(d)))
	if d.Forget {
		drive += ",snapshot=on"
	}
	return []string{"-drive", drive}
}

func isCD(d Disk) bool { return d.Bus == BusCD }

func isHardDisk(d Disk) bool { return !isCD(d) }

// driveID returns the ID of a CD drive for commands of QEMU's monitor.
func driveID(disk string) string { return "drive-" + disk }

func (s MachineSpec) smbios() string {
	if s.Identity.UUID == "" && s.Identity.Serial == "" {
		return ""
	}
	identity := "type=1"
	if s.Identity.UUID != "" {
		identity += ",uuid=" + s.Identity.UUID
	}
	if s.Identity.Serial != "" {
		identity += ",serial=" + comma(s.Identity.Serial)
	}
	return identity
}

// bootIndex returns QEMU's option for the position of a device in the firmware's boot order; empty
// if Firmware.Boot contains none of the names of the device.
func (s MachineSpec) bootIndex(names ...string) string {
	for i, b := range s.Firmware.Boot {
		if slices.Contains(names, b) {
			return fmt.Sprintf(",bootindex=%d", i+1) // 0 is for a kernel that QEMU boots
		}
	}
	return ""
}

func (s MachineSpec) bootsFrom(what string) bool { return slices.Contains(s.Firmware.Boot, what) }

// diskPath returns the file of a disk.
func (s MachineSpec) diskPath(d Disk) string {
	if d.Bus == BusCD {
		return d.Image
	}
	return filepath.Join(s.Dir, d.Name+".raw")
}

func (s MachineSpec) logPath(d Disk) string { return filepath.Join(s.Dir, d.Name+".log") }

// comma quotes a value for QEMU's option lists, where a comma ends a value.
func comma(value string) string { return strings.ReplaceAll(value, ",", ",,") }

func onOff(v bool) string {
	if v {
		return "on"
	}
	return "off"
}

package qemu

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Files of a machine's folder.
const (
	consoleFile = "console.log"
	stderrFile  = "stderr.log"
	varsFile    = "vars.fd"
)

// inherited are the numbers of the file descriptors that QEMU gets from us.
type inherited struct {
	console, qmp int
	nic          int // 0: no NIC
	channels     []int
}

// arguments is QEMU's command line. It is pure: the golden file shows it.
func (s MachineSpec) arguments(fds inherited, mac macAddr) []string {
	a := []string{
		"-name", s.Name, "-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "q35,smm=off,vmport=off", "-cpu", "max",
		"-accel", "tcg,thread=multi,tb-size=" + strconv.Itoa(s.TranslationMiB),
		"-m", strconv.Itoa(s.MemoryMiB), "-smp", strconv.Itoa(s.CPUs), "-boot", "menu=off",
		"-chardev", "socket,id=console,fd=" + strconv.Itoa(fds.console), "-serial", "chardev:console",
		"-chardev", "socket,id=qmp,fd=" + strconv.Itoa(fds.qmp), "-mon", "chardev=qmp,mode=control",
	}
	add := func(format string, values ...any) { a = append(a, strings.Fields(fmt.Sprintf(format, values...))...) }
	if s.Kernel != "" {
		a = append(a, "-kernel", s.Kernel)
		if s.Initrd != "" {
			a = append(a, "-initrd", s.Initrd)
		}
		if s.Append != "" {
			a = append(a, "-append", s.Append)
		}
	} else {
		a = append(a, "-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+comma(s.Code),
			"-drive", "if=pflash,unit=1,format=raw,file="+comma(filepath.Join(s.Dir, varsFile)))
	}
	for i, d := range s.Disks {
		// Flushes need not reach the host's platter: what QEMU wrote survives QEMU, and the host is not what loses power.
		a = append(a, "-drive", fmt.Sprintf("if=none,id=%s,format=raw,cache=unsafe,discard=unmap,readonly=%s,file=%s",
			d.Name, onOff(d.ReadOnly), comma(s.diskPath(d))))
		add("-device virtio-blk-pci,drive=%s,serial=%s,bootindex=%d", d.Name, d.Name, i+1) // 0 is a directly booted kernel
	}
	if fds.nic != 0 {
		add("-netdev stream,id=net0,server=off,addr.type=fd,addr.str=%d", fds.nic)
		add("-device virtio-net-pci,id=nic0,netdev=net0,mac=%s,romfile=", mac)
	}
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
	if s.NoReboot {
		add("-no-reboot")
	}
	if !s.RTC.IsZero() {
		add("-rtc base=%s", s.RTC.UTC().Format("2006-01-02T15:04:05"))
	}
	if identity := s.smbios(); identity != "" {
		a = append(a, "-smbios", identity)
	}
	return append(a, s.Args...)
}

func (s MachineSpec) smbios() string {
	if s.UUID == "" && s.Serial == "" {
		return ""
	}
	identity := "type=1"
	if s.UUID != "" {
		identity += ",uuid=" + s.UUID
	}
	if s.Serial != "" {
		identity += ",serial=" + comma(s.Serial)
	}
	return identity
}

func (s MachineSpec) diskPath(d Disk) string { return filepath.Join(s.Dir, d.Name+".raw") }

// comma quotes a value for QEMU's option lists, where a comma ends a value.
func comma(value string) string { return strings.ReplaceAll(value, ",", ",,") }

func onOff(v bool) string {
	if v {
		return "on"
	}
	return "off"
}

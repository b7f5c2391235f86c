// This program replaces machined in init's boot test: it prints its environment, reads the file
// /big of the root, and powers off. With fake=hang on the kernel command line, it hangs until the
// watchdog resets the machine.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

func main() {
	log, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		os.Exit(1)
	}
	say := func(format string, args ...any) { fmt.Fprintf(log, "<2>fake: "+format+"\n", args...) }
	_, err = fmt.Println("fake: standard output works")
	say("pid %d slot %s medium %s watchdog %q started %q stdout %v", os.Getpid(), os.Getenv("ORLOP_SLOT"), os.Getenv("ORLOP_MEDIUM"), os.Getenv("ORLOP_WATCHDOG_FD"), os.Getenv("ORLOP_USERSPACE_START"), err)
	mounts, err := os.ReadFile("/proc/self/mounts")
	say("mounts %v %s", err, strings.ReplaceAll(string(mounts), "\n", "; "))
	group, err := os.ReadFile("/proc/self/cgroup")
	say("group %v %s", err, strings.TrimSpace(string(group)))
	entries, err := os.ReadDir("/")
	say("root %v %v", err, entries)
	say("write %v", os.WriteFile("/usr/new", nil, 0o600))
	cmdline, _ := os.ReadFile("/proc/cmdline")
	if strings.Contains(string(cmdline), "fake=hang") {
		// Pause, because the Go runtime ends a program whose only goroutine is in an empty select.
		_, _, _ = syscall.Syscall(syscall.SYS_PAUSE, 0, 0, 0)
	}
	big, err := os.Open("/big")
	if err != nil {
		say("big %v", err)
	}
	n, err := io.Copy(io.Discard, big)
	say("read %d bytes, %v", n, err)
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}

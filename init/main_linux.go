package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/kernel/watchdog"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/verity"
)

const (
	// modulesList names the modules that are loaded on every machine.
	modulesList = "/usr/lib/orlop/modules.list"
	// deadline is the longest time from the start of init to the exec of machined. It includes the
	// search for the disk.
	deadline = 3 * time.Minute
	// panicDelay is the time, in seconds, from a kernel panic to the reset. It applies if the
	// command line has no panic= argument.
	panicDelay = "10"
)

func main() {
	defer func() {
		if r := recover(); r != nil {
			reset(fmt.Errorf("internal error: %v", r))
		}
	}()
	reset(boot())
}

// boot performs all steps up to the exec of machined. It returns only on failure.
func boot() error {
	var times stopwatch
	times.start()
	// The timer ends with the exec of machined. After the exec, the watchdog resets a machine that
	// hangs. A kernel that hangs in a driver detects this by itself (docs/decisions/0020-hangs.md).
	time.AfterFunc(deadline, func() { reset(fmt.Errorf("not done after %s", deadline)) })
	for _, m := range earlyMounts {
		if err := m.Do(); err != nil {
			return err
		}
	}
	openConsole()
	resetOnPanic()
	times.lap("mounts")

	line, err := os.ReadFile(bootenv.CommandLine)
	if err != nil {
		return fmt.Errorf("cannot read kernel command line: %w", err)
	}
	params, err := verity.FromCommandLine(string(line))
	if err != nil {
		return err
	}
	inMemory, err := rootInMemory(string(line))
	if err != nil {
		return err
	}
	root, dog, err := findRoot(params, inMemory, &times)
	if err != nil {
		return err
	}
	device, err := verity.Open(root.device, params, "root")
	if err != nil {
		return err
	}
	if err := rootMount(device).Do(); err != nil {
		return err
	}
	times.lap("root")
	if inMemory {
		if err := keepSystem(); err != nil {
			return err
		}
	}
	if err := keepSignatures(); err != nil {
		say(warning, "signatures of PCR 11: %v; the TPM cannot release the keys of encrypted disks", err)
	}
	if err := switchRoot(); err != nil {
		return err
	}
	if err := enterGroup(); err != nil {
		return err
	}
	times.lap("switch")
	say(info, "root is %s, %s", root, times.String())
	return execMachined(root.slot, dog, times.began)
}

// findRoot loads the drivers and waits for the partition with the root, or attaches a root in
// memory. It also arms the watchdog. The returned watchdog is nil if the machine has none.
func findRoot(params verity.Params, inMemory bool, times *stopwatch) (choice, *watchdog.Watchdog, error) {
	// listen comes before the first driver is loaded, so no device event is missed.
	events, err := listen()
	if err != nil {
		return choice{}, nil, err
	}
	defer events.close()
	drivers, err := loadModules(inMemory)
	if err != nil {
		return choice{}, nil, err
	}
	times.lap("modules")
	dog := armWatchdog()

	var root choice
	if inMemory {
		root, err = attachRoot()
	} else {
		root, err = waitForRoot(events, drivers, params.PartUUID(), func() { pet(dog) })
	}
	if err != nil {
		return choice{}, nil, err
	}
	if dog == nil {
		// A driver that was loaded later may have created the watchdog device (i2c-i801 creates
		// iTCO_wdt).
		events.loadPending(drivers)
		dog = armWatchdog() // its driver may have been loaded in the meantime
	}
	times.lap("disk")
	return root, dog, nil
}

// openConsole opens the standard input and output of the process. The kernel could not open them,
// because the initramfs has no /dev. openConsole ignores errors, because all important messages use
// the kernel log.
func openConsole() {
	fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	for target := range 3 {
		if fd != target {
			_ = unix.Dup3(fd, target, 0)
		}
	}
	if fd > 2 {
		_ = unix.Close(fd)
	}
}

// resetOnPanic makes the kernel reset the machine after a panic, if panic= is missing on the
// command line.
func resetOnPanic() {
	const file = "/proc/sys/kernel/panic"
	if b, err := os.ReadFile(file); err == nil && string(b) == "0\n" {
		_ = os.WriteFile(file, []byte(panicDelay), 0)
	}
}

// loadModules loads the modules of modulesList: drivers of common disks and watchdogs, the device
// mapper and the file system of the root. It returns an error if one of them fails. A root in
// memory also needs loop. waitForRoot loads other drivers only if the disk does not appear, because
// loading takes most of init's time and machined later loads the drivers of all devices.
func loadModules(inMemory bool) (*kmod.Index, error) {
	release, err := kmod.Release()
	if err != nil {
		return nil, err
	}
	index, err := kmod.Read(filepath.Join(paths.Modules, release))
	if err != nil {
		return nil, err
	}
	list, err := os.ReadFile(modulesList)
	if err != nil {
		return nil, fmt.Errorf("cannot read list of modules: %w", err)
	}
	names := moduleNames(string(list))
	if inMemory {
		names = append(names, loopModule)
	}
	steps, err := index.Plan(names...)
	if err != nil {
		return nil, err
	}
	return index, kmod.Load(steps)
}

// armWatchdog arms the watchdog and returns it. It returns nil if the machine has no watchdog or
// the watchdog cannot be armed.
func armWatchdog() *watchdog.Watchdog {
	dog, err := watchdog.Arm(watchdog.Device, watchdog.Timeout)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			say(warning, "%v", err)
		}
		return nil
	}
	if dog.CausedReset() {
		say(warning, "the last reset came from the watchdog")
	}
	return dog
}

// pet feeds the watchdog. It does nothing if dog is nil.
func pet(dog *watchdog.Watchdog) {
	if dog == nil {
		return
	}
	if err := dog.Pet(); err != nil {
		say(warning, "%v", err)
	}
}

// execMachined replaces init by machined. It returns only after an error. An empty slot means that
// the system runs from memory.
func execMachined(slot string, dog *watchdog.Watchdog, began time.Duration) error {
	env := []string{"ORLOP_SLOT=" + slot, fmt.Sprintf("%s=%d", bootenv.StartEnv, began.Nanoseconds())}
	if slot == "" {
		env = append(env, bootenv.MediumEnv+"="+bootenv.MediumMemory)
	}
	if dog != nil {
		file, err := dog.HandOver()
		if err != nil {
			return err
		}
		env = append(env, watchdog.FileEnv+"="+file)
	}
	err := unix.Exec(paths.Machined, []string{paths.Machined}, env)
	return fmt.Errorf("%s: cannot start: %w", paths.Machined, err)
}

// reset logs the cause and resets the machine. It does not return.
func reset(cause error) {
	say(critical, "cannot boot: %v", cause)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	// If the kernel has no restart method, the exit of the first process causes a panic, and the
	// panic causes a reset.
	os.Exit(1)
}

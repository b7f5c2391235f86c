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
	// deadline is the time limit of init, the wait for the disk included.
	deadline = 3 * time.Minute
	// panicDelay is the time in seconds that a panic stays on the screen before the reset, if the
	// command line does not set it.
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
	// The timer has its own thread and ends with the exec of machined; after that the watchdog
	// resets a machine that hangs. A kernel that hangs in a driver detects that itself
	// (docs/decisions/0020-hangs.md).
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
// memory. It also arms the watchdog, which is nil if the machine has none.
func findRoot(params verity.Params, inMemory bool, times *stopwatch) (choice, *watchdog.Watchdog, error) {
	// Listen before the first driver is loaded, so that no device event is missed.
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
		// another driver may have just created the watchdog device (i2c-i801 creates iTCO_wdt)
		events.loadPending(drivers)
		dog = armWatchdog() // its driver may have been loaded with the others
	}
	times.lap("disk")
	return root, dog, nil
}

// openConsole opens the standard input and output of the process. The kernel could not: the
// initramfs has no /dev. Errors are ignored as harmless: all important messages use the kernel log.
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

// resetOnPanic makes a panic end in a reset, even if panic= is missing on the command line.
func resetOnPanic() {
	const file = "/proc/sys/kernel/panic"
	if b, err := os.ReadFile(file); err == nil && string(b) == "0\n" {
		_ = os.WriteFile(file, []byte(panicDelay), 0)
	}
}

// loadModules loads the listed modules: the drivers of the common disks and watchdogs, device
// mapper and the root's file system. All of them must load. Other drivers are loaded only if the
// disk does not appear (see waitForRoot): loading takes most of init's time, and machined loads the
// drivers of all devices anyway. A root in memory also needs loop.
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

// armWatchdog returns nil if the machine has no watchdog.
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

// pet feeds the watchdog, if there is a watchdog.
func pet(dog *watchdog.Watchdog) {
	if dog == nil {
		return
	}
	if err := dog.Pet(); err != nil {
		say(warning, "%v", err)
	}
}

// execMachined replaces this process. A system without a slot runs from memory.
func execMachined(slot string, dog *watchdog.Watchdog, began time.Duration) error {
	env := []string{"ORLOP_SLOT=" + slot, fmt.Sprintf("ORLOP_USERSPACE_START=%d", began.Nanoseconds())}
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
	// For a kernel without a restart method: the end of the first process is a panic, and a panic
	// is a reset.
	os.Exit(1)
}

// Command kernel-hangs is, as init, a system with a driver that never comes back: it gives the
// kernel one of those that init loads, changed so that its start is an endless loop. Nothing has
// armed the watchdog yet.
package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kmod"
	"github.com/orlop-os/orlop/pkg/paths"
)

// loop is "jmp $" for x86-64: it jumps to itself.
var loop = []byte{0xeb, 0xfe}

// driver is one that needs no other: the core of the watchdogs.
const driver = "watchdog"

func main() {
	fmt.Fprintln(os.Stderr, "kernel-hangs:", hang())
	// Reached only if the kernel would not take the driver. To end here would be a panic, another
	// fault than this one.
	wait := make(chan os.Signal, 1)
	signal.Notify(wait)
	for range wait {
	}
}

func hang() error {
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	release, err := kmod.Release()
	if err != nil {
		return err
	}
	index, err := kmod.Read(filepath.Join(paths.Modules, release))
	if err != nil {
		return err
	}
	steps, err := index.Plan(driver)
	if err != nil {
		return err
	}
	if len(steps) != 1 {
		return fmt.Errorf("module %s: needs others", driver)
	}
	module, err := os.ReadFile(steps[0].File)
	if err != nil {
		return err
	}
	// Debian's signature would not fit any more. An unsigned driver is taken.
	module = bytes.TrimSuffix(module, []byte("~Module signature appended~\n"))
	if module, err = endless(module); err != nil {
		return fmt.Errorf("module %s: %w", driver, err)
	}
	if err := unix.InitModule(module, ""); err != nil {
		return fmt.Errorf("module %s: %w", driver, err)
	}
	return errors.New("the driver came back")
}

// endless puts the loop where the module's start begins.
func endless(module []byte) ([]byte, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	for _, s := range symbols {
		if s.Name == "init_module" {
			at := f.Sections[s.Section].Offset + s.Value
			return append(append(bytes.Clone(module[:at]), loop...), module[at+uint64(len(loop)):]...), nil
		}
	}
	return nil, errors.New("no symbol init_module")
}

// Command kernel-hangs is an init that simulates a system with a driver that never returns. It
// loads a driver that the system's init also loads. It replaces the start code of the driver by an
// endless loop. No watchdog is armed at this time.
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

	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/paths"
)

// loop is the x86-64 instruction "jmp $", a jump to itself.
var loop = []byte{0xeb, 0xfe}

// driver is the module watchdog, the core of the watchdog drivers. It needs no other module.
const driver = "watchdog"

func main() {
	fmt.Fprintln(os.Stderr, "kernel-hangs:", hang())
	// The process continues only if the kernel rejects the driver. It must not exit, because the
	// kernel would panic, and a panic is a different fault.
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
		return fmt.Errorf("module %s: needs other modules", driver)
	}
	module, err := os.ReadFile(steps[0].File)
	if err != nil {
		return err
	}
	// Debian's signature does not match the changed module. Without the text at the end of the
	// file, the kernel treats the module as unsigned. It accepts an unsigned module, because the
	// Makefile builds this version without the kernel arguments that forbid unsigned modules.
	module = bytes.TrimSuffix(module, []byte("~Module signature appended~\n"))
	if module, err = endless(module); err != nil {
		return fmt.Errorf("module %s: %w", driver, err)
	}
	if err := unix.InitModule(module, ""); err != nil {
		return fmt.Errorf("module %s: %w", driver, err)
	}
	return errors.New("the start code of the driver returned")
}

// endless returns the module with the loop at the beginning of its start code.
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

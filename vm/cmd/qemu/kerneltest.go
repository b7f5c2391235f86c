package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/orlop-os/orlop/vm"
	"github.com/orlop-os/orlop/vm/kerneltest"
)

// notRun is the exit status if the program could not be run. env(1) and docker use the same status.
const notRun = exitStatus(125)

// kernelTest runs `PROGRAM ARG...` in a machine. The directory testdata of the working directory is
// copied to the machine.
func kernelTest(ctx context.Context, args []string) error {
	var (
		flags                            = flag.NewFlagSet("kernel-test", flag.ContinueOnError)
		kernel                           = flags.String("kernel", "", "directory with vmlinuz and modules/RELEASE, or an unpacked Debian kernel package")
		memory                           = flags.Int("memory", 1024, "memory, MiB")
		cpus                             = flags.Int("cpus", 2, "CPUs")
		nic                              = flags.Bool("nic", true, "plug eth0 into a closed network with DHCP, DNS and NTP")
		watchdog                         = flags.Bool("watchdog", false, "add an i6300esb watchdog")
		timeout                          = flags.Duration("timeout", 0, "when to give up a run; default: a part of the program's -test.timeout, or 5 m")
		repeats                          = flags.String("repeats", "", "`file` to which a line about each repeated run is added; go test hides the output of a program that passes")
		appended                         = flags.String("append", "", "words after the kernel's command line")
		console                          = flags.Bool("console", false, "print the end of the console even if all went well")
		modules, tools, files, env, disk list
	)
	flags.Var(&modules, "module", "load this module, and what it needs, instead of the usual list (repeat; NAME? may be missing)")
	flags.Var(&tools, "tool", "executable of the host to take along with its libraries, beside the usual ones (repeat)")
	flags.Var(&files, "file", "FROM[:TO]: file or directory of the host to take along (repeat)")
	flags.Var(&env, "env", "NAME=VALUE, or NAME to take over the value of here (repeat)")
	flags.Var(&disk, "disk", "size in MiB of a blank disk (repeat; default two of 2048)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 || *kernel == "" {
		fmt.Fprintln(os.Stderr, "usage: qemu kernel-test -kernel DIR [FLAGS] PROGRAM [ARG...]")
		return exitStatus(2)
	}
	o := kerneltest.Options{Kernel: *kernel, Program: flags.Arg(0), Modules: modules, Append: *appended,
		Stdout: os.Stdout, Stderr: os.Stderr, Files: map[string]string{},
		Machine: vm.MachineSpec{MemoryMiB: *memory, CPUs: *cpus, Watchdog: *watchdog}}
	if len(tools) > 0 {
		o.Tools = append(append(o.Tools, kerneltest.DefaultTools...), tools...)
	}
	var err error
	if o.Args, o.Limit, err = testArguments(flags.Args()[1:]); err != nil {
		return err
	}
	if *timeout > 0 {
		o.Limit = *timeout
	}
	if *repeats != "" {
		o.Repeated = func(why string) { note(*repeats, fmt.Sprintf("%s: %s", filepath.Base(o.Program), why)) }
	}
	if o.Machine.Disks, err = blankDisks(disk); err != nil {
		return err
	}
	takeAlong(&o, files, env)
	if *nic {
		network, err := vm.NewNetwork(vm.NetworkSpec{})
		if err != nil {
			return err
		}
		defer network.Close()
		o.Machine.NIC.Network = network
	}
	result, err := kerneltest.Run(ctx, o)
	if err == nil {
		err = result.Err()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return notRun
	}
	if *console || result.ExitCode != 0 {
		fmt.Fprintf(os.Stderr, "end of the kernel's console:\n%s\n", result.Console)
	}
	if result.ExitCode != 0 {
		return exitStatus(result.ExitCode)
	}
	return nil
}

// note adds a line to a file. A failure is only printed, because the result of the tests is valid
// without the line.
func note(path, line string) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = fmt.Fprintln(file, line)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernel-test: cannot note a repeated run:", err)
	}
}

// testArguments returns the arguments for the program in the machine, and the limit of each run. It
// removes -test.testlogfile and rejects flags for other output files of go test, because the files
// of the guest are lost.
//
// go test ends this command a minute after -test.timeout, so each of the kerneltest.MaxRuns runs
// gets an equal part of this timeout. The timeout of the program itself is nine tenths of its part.
// So a program that hangs ends before the limit, and prints the stacks of its goroutines.
func testArguments(args []string) ([]string, time.Duration, error) {
	limit := 5 * time.Minute
	var kept []string
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "-test.testlogfile": // for the cache of go test; the guest's files are lost
			continue
		case "-test.coverprofile", "-test.gocoverdir", "-test.cpuprofile", "-test.memprofile", "-test.blockprofile", "-test.mutexprofile", "-test.trace":
			return nil, 0, fmt.Errorf("kernel-test: cannot do %s: the guest's files are lost", name)
		case "-test.timeout":
			d, err := time.ParseDuration(value)
			if err != nil {
				return nil, 0, fmt.Errorf("kernel-test: %s: %w", a, err)
			}
			if d > 0 {
				limit = d / kerneltest.MaxRuns
				a = fmt.Sprintf("%s=%s", name, limit*9/10)
			}
		}
		kept = append(kept, a)
	}
	return kept, limit, nil
}

func blankDisks(sizes []string) ([]vm.Disk, error) {
	if len(sizes) == 0 {
		sizes = []string{"2048", "2048"}
	}
	var disks []vm.Disk
	for _, s := range sizes {
		size, err := strconv.ParseInt(s, 10, 64)
		if err != nil || size < 0 {
			return nil, fmt.Errorf("kernel-test: -disk %s is not a number of MiB", s)
		}
		if size > 0 { // -disk 0: no disk
			disks = append(disks, vm.Disk{SizeMiB: size})
		}
	}
	return disks, nil
}

// takeAlong adds testdata, the requested files and the requested environment to the options.
func takeAlong(o *kerneltest.Options, files, env []string) {
	if _, err := os.Stat("testdata"); err == nil {
		o.Files["testdata"] = "testdata"
	}
	for _, f := range files {
		from, to, found := strings.Cut(f, ":")
		if !found {
			to = filepath.Clean(from)
		}
		o.Files[to] = from
	}
	for _, e := range env {
		if !strings.Contains(e, "=") {
			e += "=" + os.Getenv(e)
		}
		o.Env = append(o.Env, e)
	}
}

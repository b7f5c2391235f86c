package kerneltest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/vm"
	"github.com/orlop-os/orlop/vm/kerneltest/protocol"
)

// guestPackage is the package of the guest's init. Run builds it, so the working directory must be
// in the module.
const guestPackage = "github.com/orlop-os/orlop/vm/kerneltest/guest"

// DefaultModules are the modules that the kernel-facing packages of the system need. All are
// optional, because a test that needs a missing module fails by itself.
var DefaultModules = []string{"virtio_blk?", "virtio_net?", "dm_mod?", "dm_verity?", "dm_crypt?", "xts?", "aesni_intel?", "erofs?", "overlay?", "vfat?", "nls_ascii?", "nls_cp437?",
	"nls_iso8859_1?", "loop?", "dummy? numdummies=0", "bonding? max_bonds=0", "8021q?", "vrf?", "bridge?", "veth?", "tun?", "nf_tables?", "nft_ct?", "nft_nat?", "nft_masq?", "nft_fib_inet?", "nft_chain_nat?",
	"nft_reject_ipv4?", "nft_reject_ipv6?", "nft_reject_inet?", "nft_numgen?", "nf_conntrack_netlink?", "br_netfilter?", "softdog?", "efivarfs?",
	"button?", "evdev?", "wireguard?", "vxlan?", "quota_v2?"}

// DefaultTools are executables of the host that the guest gets if the host has them.
var DefaultTools = []string{"/usr/sbin/mke2fs?", "/usr/sbin/e2fsck?", "/usr/sbin/resize2fs?", "/usr/sbin/cryptsetup?", "/usr/sbin/mkfs.fat?", "/usr/sbin/nft?"}

// Options describe a kernel test.
type Options struct {
	// Kernel is a directory with a kernel and its modules: build/qemu/kernel, or an unpacked Debian
	// package.
	Kernel string
	// Program is the statically linked test binary; Args and Env are passed to it.
	Program string
	Args    []string
	Env     []string
	// Modules are loaded with their dependencies, in order; nil: DefaultModules. A "?" at the end
	// of a name makes the module optional.
	Modules []string
	// Tools are executables of the host, copied with their libraries; nil: DefaultTools. A "?" at
	// the end of a path makes the tool optional.
	Tools []string
	// Files maps paths in the guest to files or directories of the host. A relative path is below
	// the working directory of the program in the guest.
	Files map[string]string
	// Init is the executable of the guest's init; empty: Run builds it.
	Init string
	// Machine describes the machine: memory, CPUs, disks and NIC. Run sets its directory, its
	// kernel and its channels. Its network may be nil.
	Machine vm.MachineSpec
	// Append is appended to the kernel's command line.
	Append string
	// Stdout and Stderr receive the program's output as it arrives. Stderr also receives a message
	// with the reason of each repetition.
	Stdout, Stderr io.Writer
	// Limit bounds each run of the program, with the boot of its machine; 0: no limit.
	Limit time.Duration
	// Repeated, if set, is called with the reason of each repetition.
	Repeated func(why string)
	// Started, if set, is called at each boot with the machine that has just been switched on, for
	// tests that press its buttons.
	Started func(*vm.Machine)
}

// Result is the result of a kernel test.
type Result struct {
	protocol.Outcome
	// Begun reports whether the program was started. Otherwise, the machine ended before the test.
	Begun bool
	// Reported reports whether the guest reported the end of the program. Otherwise, ExitCode has
	// no meaning.
	Reported bool
	// Failed reports whether the output has a mark of a failed test.
	Failed bool
	// Exit describes the end of QEMU. Console has the last lines of the kernel's messages.
	Exit    vm.Exit
	Console string
	// Break is the part of the console that shows how the emulator broke the kernel
	// (vm.KernelBreak); empty if the emulator did not break the kernel.
	Break string
}

// Err returns nil if the program ran and the guest reported its exit status, which may be nonzero.
func (r Result) Err() error {
	switch {
	case r.Failure != "":
		return fmt.Errorf("kernel test: the guest could not run the program: %s; end of the console:\n%s", r.Failure, r.Console)
	case !r.Reported:
		return fmt.Errorf("kernel test: the machine ended without a report: %s; end of the console:\n%s", r.Exit, r.Console)
	}
	return nil
}

// Run boots the kernel, runs the program and returns the result. It fails if the machine could not
// be made or started. It also fails if ctx or the limit of a run ends first: it then cuts the power
// of the machine, and the result still has the end of the console. The exit status of the program
// is only in the result. If the emulator broke the kernel, Run may run the program again
// (progress.again).
func Run(ctx context.Context, o Options) (Result, error) {
	dir, err := os.MkdirTemp("", "orlop-kernel-test-")
	if err != nil {
		return Result{}, fmt.Errorf("kernel test: %w", err)
	}
	defer os.RemoveAll(dir)
	k, err := openKernel(o.Kernel)
	if err != nil {
		return Result{}, err
	}
	if o.Init == "" {
		o.Init = filepath.Join(dir, "guest")
		if err := buildGuest(ctx, o.Init); err != nil {
			return Result{}, err
		}
	}
	initrd := filepath.Join(dir, "initramfs")
	if err := pack(initrd, k, o); err != nil {
		return Result{}, err
	}
	spec := o.Machine
	if spec.Name == "" {
		spec.Name = "kernel"
	}
	spec.Dir, spec.Kernel.Image, spec.Kernel.Initrd = filepath.Join(dir, "machine"), k.image, initrd
	// panic=-1: after a panic, the kernel resets the machine at once, which ends QEMU (NoReboot).
	//
	// oops=panic: an oops ends the kernel at once, as in the product (pkg/kernel/sysctl).
	// Otherwise, an oops would end only a thread of the kernel, and a test could wait for this
	// thread until its deadline.
	//
	// no_timer_check: on a busy host, timer interrupts are late. Without this option, the kernel
	// would treat the timer as broken.
	spec.Kernel.Append, spec.QEMU.NoReboot = strings.TrimSpace("console=ttyS0 quiet loglevel=4 panic=-1 oops=panic no_timer_check rdinit=/init net.ifnames=0 cgroup_no_v1=all "+o.Append), true
	spec.Channels = []string{protocol.StdoutPort, protocol.StderrPort, protocol.ControlPort}
	return repeat(ctx, o, func(ctx context.Context) (Result, error) { return once(ctx, spec, o) })
}

// once boots a machine and returns the result of this boot. First, it removes the disks of an
// earlier boot, so the new boot has new disks.
func once(ctx context.Context, spec vm.MachineSpec, o Options) (Result, error) {
	if err := os.RemoveAll(spec.Dir); err != nil {
		return Result{}, fmt.Errorf("kernel test: cannot remove the disks of the earlier run: %w", err)
	}
	m, err := vm.Start(ctx, spec)
	if err != nil {
		return Result{}, err
	}
	defer m.Close()
	if o.Started != nil {
		o.Started(m)
	}
	return watch(ctx, m, o)
}

// watch copies the output of the program until the machine is off, and returns the result. If ctx
// ends first, it cuts the power and returns an error.
func watch(ctx context.Context, m *vm.Machine, o Options) (Result, error) {
	var (
		result  Result
		reading sync.WaitGroup
		ports   = map[string]io.ReadWriteCloser{}
	)
	for _, name := range []string{protocol.StdoutPort, protocol.StderrPort, protocol.ControlPort} {
		port, err := m.Channel(name)
		if err != nil {
			return result, err
		}
		ports[name] = port
	}
	outputs := map[string]*marks{protocol.StdoutPort: {to: o.Stdout}, protocol.StderrPort: {to: o.Stderr}}
	for name, to := range outputs {
		reading.Go(func() { io.Copy(to, ports[name]) }) // ends with QEMU
	}
	reading.Go(func() {
		control := bufio.NewReader(ports[protocol.ControlPort])
		line, err := control.ReadBytes('\n')
		if err == nil && string(line) == protocol.Begun {
			result.Begun = true
			line, err = control.ReadBytes('\n')
		}
		result.Reported = err == nil && json.Unmarshal(line, &result.Outcome) == nil
	})
	exit, err := m.Wait(ctx)
	if err != nil {
		m.PowerCut()
	}
	reading.Wait()
	for _, p := range ports {
		p.Close()
	}
	for _, to := range outputs {
		result.Failed = result.Failed || to.failed()
	}
	result.Exit, result.Console, result.Break = exit, m.ConsoleTail(60), vm.KernelBreak(m.Console().String())
	return result, err
}

// buildGuest builds the guest's init. Go's build cache makes later builds fast.
func buildGuest(ctx context.Context, to string) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", to, guestPackage)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); ctx.Err() != nil {
		return fmt.Errorf("kernel test: cannot build the guest's init: %w", context.Cause(ctx))
	} else if err != nil {
		return fmt.Errorf("kernel test: cannot build the guest's init (run it from within the module): %w\n%s", err, out)
	}
	return nil
}

// pack writes the initramfs.
func pack(path string, k *kernel, o Options) (err error) {
	a, err := newArchive(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.skeleton(); err != nil {
		return err
	}
	if err := a.copyFile("/init", o.Init); err != nil {
		return err
	}
	if err := a.copyFile(protocol.ProgramFile, o.Program); err != nil {
		return err
	}
	if err := a.dir(protocol.WorkDir); err != nil {
		return err
	}
	for to, from := range o.Files {
		if !filepath.IsAbs(to) {
			to = filepath.Join(protocol.WorkDir, to)
		}
		if err := a.copyTree(to, from); err != nil {
			return fmt.Errorf("kernel test: %w", err)
		}
	}
	if err := packTools(a, o.Tools); err != nil {
		return err
	}
	job := protocol.Job{Args: o.Args, Env: append([]string{"ORLOP_KERNEL_TEST=1", "HOME=/root", "TMPDIR=/tmp",
		"PATH=/usr/sbin:/usr/bin"}, o.Env...)}
	if job.Parameters, err = packModules(a, k, o.Modules); err != nil {
		return err
	}
	data, err := json.Marshal(job)
	if err != nil {
		return fmt.Errorf("kernel test: %w", err)
	}
	return a.data(protocol.JobFile, data)
}

// packTools adds the tools with their libraries.
func packTools(a *archive, tools []string) error {
	if tools == nil {
		tools = DefaultTools
	}
	for _, t := range tools {
		path, optional := strings.CutSuffix(t, "?")
		if _, err := os.Stat(path); err != nil && optional {
			continue
		}
		if err := a.tool(path); err != nil {
			return err
		}
	}
	return nil
}

// packModules adds the modules. It returns the parameters of the modules, by the name of the module
// file.
func packModules(a *archive, k *kernel, names []string) (map[string]string, error) {
	if names == nil {
		names = DefaultModules
	}
	modules, err := k.closure(names)
	if err != nil {
		return nil, err
	}
	parameters := map[string]string{}
	for i, m := range modules {
		file := fmt.Sprintf("%03d-%s.ko", i, m.name)
		if m.parameters != "" {
			parameters[file] = m.parameters
		}
		if err := a.data(protocol.ModuleDir+"/"+file, m.data); err != nil {
			return nil, err
		}
	}
	return parameters, nil
}

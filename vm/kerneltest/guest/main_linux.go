// Command guest is the first process of a machine that runs a kernel test: it mounts file systems,
// loads the modules, runs the test binary, reports its result and switches the machine off. Only
// package kerneltest builds and uses it.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/vm/kerneltest/protocol"
)

func main() {
	outcome := protocol.Outcome{ExitCode: 125}
	code, err := run()
	if err != nil {
		outcome.Failure = err.Error()
		fmt.Println("kernel test:", err)
	} else {
		outcome.ExitCode = code
	}
	if err := report(outcome); err != nil {
		fmt.Println("kernel test: cannot report:", err)
	}
	unix.Sync()
	err = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Println("kernel test: cannot switch off:", err)
}

func run() (int, error) {
	if err := mounts(); err != nil {
		return 0, err
	}
	data, err := os.ReadFile(protocol.JobFile)
	if err != nil {
		return 0, err
	}
	var job protocol.Job
	if err := json.Unmarshal(data, &job); err != nil {
		return 0, fmt.Errorf("%s: %w", protocol.JobFile, err)
	}
	if err := loadModules(job.Parameters); err != nil {
		return 0, err
	}
	if err := loopbackUp(); err != nil {
		return 0, err
	}
	stdout, err := openPort(protocol.StdoutPort)
	if err != nil {
		return 0, err
	}
	stderr, err := openPort(protocol.StderrPort)
	if err != nil {
		return 0, err
	}
	if err := tell([]byte(protocol.Begun)); err != nil {
		return 0, err
	}
	program := exec.Command(protocol.ProgramFile, job.Args...)
	program.Env, program.Dir, program.Stdout, program.Stderr = job.Env, protocol.WorkDir, stdout, stderr
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = program.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// mounts mounts the file systems of the kernel and tmpfs at their usual directories.
func mounts() error {
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", ""},
		{"devpts", "/dev/pts", "ptmxmode=0666"},
		{"tmpfs", "/dev/shm", ""},
		{"tmpfs", "/tmp", ""},
		{"tmpfs", "/run", ""},
		{"cgroup2", "/sys/fs/cgroup", ""},
		{"securityfs", "/sys/kernel/security", ""},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("%s: cannot mount %s: %w", m.at, m.kind, err)
		}
	}
	return os.Chmod("/tmp", 0o1777)
}

// loadModules loads the files in ModuleDir, in the order of the names.
func loadModules(parameters map[string]string) error {
	entries, err := os.ReadDir(protocol.ModuleDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		file, err := os.Open(filepath.Join(protocol.ModuleDir, e.Name()))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(file.Fd()), parameters[e.Name()], 0)
		file.Close()
		// ENODEV: the machine does not have the hardware of the module.
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("%s: cannot load: %w", e.Name(), err)
		}
	}
	return nil
}

// loopbackUp sets the interface lo up, because tests use 127.0.0.1.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("lo: cannot make a socket: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("lo: cannot set up: %w", err)
	}
	return nil
}

// openPort opens a virtio-serial port by its name. The port is in blocking mode, so a write returns
// only when the host has received the data.
func openPort(name string) (*os.File, error) {
	ports, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, p := range ports {
		have, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(string(have)) != name {
			continue
		}
		path := "/dev/" + filepath.Base(filepath.Dir(p))
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("%s (%s): cannot open: %w", path, name, err)
		}
		return os.NewFile(uintptr(fd), name), nil
	}
	return nil, fmt.Errorf("no virtio-serial port is called %s", name)
}

func report(o protocol.Outcome) error {
	line, err := o.Line()
	if err != nil {
		return err
	}
	return tell(line)
}

func tell(line []byte) error {
	port, err := openPort(protocol.ControlPort)
	if err != nil {
		return err
	}
	_, err = port.Write(line)
	return errors.Join(err, port.Close())
}

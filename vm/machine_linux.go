package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/vm/redfish"
)

// Machine is a virtual machine: a directory, and a QEMU process while the machine is switched on.
type Machine struct {
	spec    MachineSpec
	addr    netip.Addr
	macs    []macAddr // of the NICs
	console *Console

	mu     sync.Mutex
	power  *power // the current or last power-on
	closed bool
	setup  setup // changes of the specification at the next power-on
}

// Start creates a machine and switches it on. ctx bounds only the start; Close ends the machine.
func Start(ctx context.Context, spec MachineSpec) (*Machine, error) {
	spec, err := spec.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := spec.prepare(); err != nil {
		return nil, err
	}
	m := &Machine{spec: spec}
	if spec.hasNIC() {
		m.macs = make([]macAddr, spec.NIC.More+1)
		if m.addr, m.macs[0], err = spec.NIC.Network.reserve(spec.Name, spec.NIC.Addr); err == nil && spec.NIC.Network.spec.IPv6.Only {
			m.addr = spec.NIC.Network.SixOf(spec.Name)
		}
		if err != nil {
			return nil, err
		}
		for i := range spec.NIC.More {
			if _, m.macs[i+1], err = spec.NIC.Network.reserve(NICName(spec.Name, i+1), netip.Addr{}); err != nil {
				return nil, err
			}
		}
	}
	if m.console, err = openConsole(filepath.Join(spec.Dir, consoleFile)); err != nil {
		return nil, fmt.Errorf("machine %s: %w", spec.Name, err)
	}
	if err := m.PowerOn(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (s MachineSpec) hasNIC() bool { return s.NIC.Network != nil && !s.NIC.Omit }

// Name returns the machine's name.
func (m *Machine) Name() string { return m.spec.Name }

// Addr returns the address that the machine gets by DHCP. In a network with IPv6 only, it returns
// the machine's IPv6 address. The address is invalid if the machine has no NIC.
func (m *Machine) Addr() netip.Addr { return m.addr }

// Spec returns the machine's specification, with all defaults.
func (m *Machine) Spec() MachineSpec { return m.spec }

// DiskPath returns the path of the file of a disk; empty if the machine has no disk with this name.
// Tests read or damage the file while the power is off.
func (m *Machine) DiskPath(name string) string {
	for _, d := range m.spec.Disks {
		if d.Name == name {
			return m.spec.diskPath(d)
		}
	}
	return ""
}

// LogPath returns the path of the record of a disk (Disk.Record). The file grows while the machine
// is on.
func (m *Machine) LogPath(name string) string { return m.spec.logPath(Disk{Name: name}) }

// Console returns the output of the machine's serial port.
func (m *Machine) Console() *Console { return m.console }

// ConsoleTail returns the last n lines of the console.
func (m *Machine) ConsoleTail(n int) string { return m.console.Tail(n) }

// WaitConsole waits until a line that the console has received since power-on matches re. It
// returns the match and its groups. It fails if ctx or the machine ends first; the error contains
// the end of the console.
func (m *Machine) WaitConsole(ctx context.Context, re *regexp.Regexp) ([]string, error) {
	p := m.current()
	return m.waitConsole(ctx, p, p.consoleStart, re)
}

// WaitConsoleFrom is WaitConsole for the output after an offset of the console (Console.Offset).
func (m *Machine) WaitConsoleFrom(ctx context.Context, offset int64, re *regexp.Regexp) ([]string, error) {
	return m.waitConsole(ctx, m.current(), offset, re)
}

// waitConsole is WaitConsoleFrom for the power-on p.
func (m *Machine) waitConsole(ctx context.Context, p *power, offset int64, re *regexp.Regexp) ([]string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.ended:
			cancel(fmt.Errorf("the machine ended first: %s", p.exit))
		case <-ctx.Done():
		}
	}()
	match, next, err := m.console.WaitFrom(ctx, offset, re)
	if err == nil {
		return match, nil
	}
	if match, _, _ := m.console.search(next, re); match != nil {
		return match, nil // the line arrived directly before the end of the machine
	}
	return nil, fmt.Errorf("machine %s: %w; end of the console:\n%s", m.spec.Name, err, m.console.Tail(40))
}

// current returns the current or last power-on.
func (m *Machine) current() *power {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.power
}

// Running reports whether the machine is switched on.
func (m *Machine) Running() bool {
	select {
	case <-m.current().ended:
		return false
	default:
		return true
	}
}

// PID returns QEMU's process ID; 0 when the machine is off.
func (m *Machine) PID() int {
	if !m.Running() {
		return 0
	}
	return m.current().cmd.Process.Pid
}

// ProcessorTime returns the processor time that QEMU and its threads have used on this computer
// since power-on. It fails if the machine is off.
func (m *Machine) ProcessorTime() (time.Duration, error) {
	pid := m.PID()
	if pid == 0 {
		return 0, fmt.Errorf("machine %s: cannot read its processor time: it is off", m.spec.Name)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("machine %s: cannot read its processor time: %w", m.spec.Name, err)
	}
	return processorTime(string(text))
}

// userHz is the number of clock ticks per second in /proc/PID/stat. Linux uses this number in all
// its interfaces to programs.
const userHz = 100

// processorTime returns the sum of the fields utime and stime of /proc/PID/stat (proc_pid_stat(5)).
// The second field is the name of the program in parentheses, which may contain any character. So
// the function parses only the text after the last parenthesis.
func processorTime(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const utime, stime = 11, 12 // fields 14 and 15 of the line: index 0 here is field 3
	if len(fields) <= stime {
		return 0, fmt.Errorf("processor time: cannot understand %q", stat)
	}
	var sum time.Duration
	for _, f := range []string{fields[utime], fields[stime]} {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("processor time: cannot understand %q: %w", stat, err)
		}
		sum += time.Duration(ticks) * (time.Second / userHz)
	}
	return sum, nil
}

// Events returns QEMU's reports since power-on: resets, the watchdog, the shutdown.
func (m *Machine) Events() []Event { return m.current().qmp.log() }

// Channel returns the host's end of a virtio-serial port, for the current power-on. It fails if
// MachineSpec.Channels does not contain the name.
func (m *Machine) Channel(name string) (io.ReadWriteCloser, error) {
	c := m.current().channels[name]
	if c == nil {
		return nil, fmt.Errorf("machine %s: no channel %q in its specification", m.spec.Name, name)
	}
	return c, nil
}

// Wait waits until the machine is off and returns its Exit. It fails only if ctx ends first.
// Exit.Err returns an error if the machine ended unexpectedly.
func (m *Machine) Wait(ctx context.Context) (Exit, error) {
	p := m.current()
	select {
	case <-p.ended:
		return p.exit, nil
	case <-ctx.Done():
		return Exit{}, fmt.Errorf("machine %s: still running: %w; end of the console:\n%s",
			m.spec.Name, context.Cause(ctx), m.console.Tail(40))
	}
}

// PowerOn switches the machine on again, with its present disks. It fails if the machine is on or
// closed.
func (m *Machine) PowerOn(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("machine %s: cannot power on: it is closed", m.spec.Name)
	}
	if m.power != nil {
		select {
		case <-m.power.ended:
		default:
			return fmt.Errorf("machine %s: cannot power on: it is running", m.spec.Name)
		}
	}
	p, err := m.startQEMU(m.spec.with(m.setup))
	if err != nil {
		return fmt.Errorf("machine %s: cannot power on: %w", m.spec.Name, err)
	}
	m.power = p
	if err := p.qmp.negotiate(ctx); err != nil {
		p.kill("start failed")
		return fmt.Errorf("machine %s: cannot power on: %w: %s", m.spec.Name, err, p.exit)
	}
	// An override for one boot applies to this power-on. continueAfter boots with the usual order.
	if m.setup.override.Enabled() && m.setup.override.Once {
		m.setup.override = redfish.Override{}
		if !m.spec.QEMU.NoReboot {
			go m.continueAfter(p)
		}
	}
	return nil
}

// VarsPath returns the path of the file with the firmware's variables of a machine. While the
// machine is off, the path can be Firmware.Vars of a new machine. The new machine starts with a
// copy of the variables, and so with the same keys for Secure Boot.
func VarsPath(m *Machine) string { return filepath.Join(m.spec.Dir, varsFile) }

// ResetFirmwareVars resets the firmware's variables to their initial state, as an empty battery
// does in a real machine. It fails if the machine is on.
func (m *Machine) ResetFirmwareVars() error {
	if m.Running() {
		return fmt.Errorf("machine %s: it is on", m.Name())
	}
	if err := os.Remove(VarsPath(m)); err != nil {
		return fmt.Errorf("machine %s: cannot forget the firmware's variables: %w", m.Name(), err)
	}
	return m.spec.prepare()
}

// PowerCut cuts the power: it kills QEMU, and returns when all processes of the machine have ended.
// It has no effect on a machine that is off.
func (m *Machine) PowerCut() { m.current().kill("power cut") }

// PowerButton presses the ACPI power button. The guest decides whether and when it shuts down; Wait
// waits for the end.
func (m *Machine) PowerButton(ctx context.Context) error {
	return m.monitor(ctx, "press the power button", "system_powerdown", nil)
}

// Reset presses the machine's reset button.
func (m *Machine) Reset(ctx context.Context) error {
	return m.monitor(ctx, "reset", "system_reset", nil)
}

// Pause stops all CPUs of the machine until Resume. The guest's clock stops, too.
func (m *Machine) Pause(ctx context.Context) error { return m.monitor(ctx, "pause", "stop", nil) }

// Resume ends a Pause.
func (m *Machine) Resume(ctx context.Context) error { return m.monitor(ctx, "resume", "cont", nil) }

// Written returns the number of bytes that the machine has written to its disks since power-on.
func (m *Machine) Written(ctx context.Context) (int64, error) {
	answer, err := m.current().qmp.ask(ctx, "query-blockstats", nil)
	var disks []struct {
		Stats struct {
			Written int64 `json:"wr_bytes"`
		}
	}
	if err == nil {
		err = json.Unmarshal(answer, &disks)
	}
	if err != nil {
		return 0, fmt.Errorf("machine %s: cannot tell what it has written: %w", m.spec.Name, err)
	}
	var sum int64
	for _, d := range disks {
		sum += d.Stats.Written
	}
	return sum, nil
}

// SetCable plugs in or unplugs the cable of NIC n of the machine, counted from 0. Without its
// cable, a NIC has no carrier, and no frame passes. At each power-on, all cables are plugged in.
func (m *Machine) SetCable(ctx context.Context, n int, plugged bool) error {
	if !m.spec.hasNIC() || n < 0 || n > m.spec.NIC.More {
		return fmt.Errorf("machine %s: cannot change the cable: it has no NIC %d", m.spec.Name, n)
	}
	return m.Monitor(ctx, "set_link", map[string]any{"name": fmt.Sprintf("nic%d", n), "up": plugged})
}

// Monitor runs a command of QEMU's machine protocol (QMP). It fails if QEMU reports an error.
func (m *Machine) Monitor(ctx context.Context, command string, arguments map[string]any) error {
	return m.monitor(ctx, "run "+command, command, arguments)
}

func (m *Machine) monitor(ctx context.Context, what, command string, arguments map[string]any) error {
	p := m.current()
	if err := p.qmp.do(ctx, command, arguments); err != nil {
		if errors.Is(err, errMonitorEnded) {
			select {
			case <-p.ended:
				err = fmt.Errorf("%w: %s", err, p.exit)
			case <-ctx.Done():
			}
		}
		return fmt.Errorf("machine %s: cannot %s: %w", m.spec.Name, what, err)
	}
	return nil
}

// Close cuts the power and releases the machine's resources. Its directory stays.
func (m *Machine) Close() error {
	m.mu.Lock()
	p := m.power
	m.closed = true
	m.mu.Unlock()
	if p != nil {
		p.kill("closed")
	}
	return m.console.close()
}

// readTail returns the end of a file, at most size bytes; empty if the file cannot be read.
func readTail(path string, size int64) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > size {
		if _, err := file.Seek(-size, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return ""
	}
	return string(data)
}

// exitTime bounds the time for reading the last output after the end of QEMU. A short time is
// sufficient, because the output is already in the sockets.
const exitTime = 5 * time.Second

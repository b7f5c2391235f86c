package vm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Exit describes how a power-on of a machine ended.
type Exit struct {
	// Code is QEMU's exit status; -1 if a signal ended QEMU.
	Code int `json:"code"`
	// Signal is the signal that ended QEMU.
	Signal string `json:"signal,omitempty"`
	// Reason is the reason that QEMU reported (QMP's ShutdownCause), for example "guest-shutdown",
	// "guest-panic", "host-signal", or "guest-reset" with NoReboot. It is empty if QEMU ended
	// without a report.
	Reason string `json:"reason,omitempty"`
	// Request is the action of this package that ended QEMU, for example "power cut" or "closed";
	// empty if QEMU ended without an action.
	Request string `json:"request,omitempty"`
	// Stderr is the end of QEMU's output on stderr.
	Stderr string `json:"stderr,omitempty"`
	// Ran is the time for which the machine was on.
	Ran time.Duration `json:"ran"`
}

// Err returns nil if the guest or a caller of this package requested the end. Otherwise it returns
// an error with the summary of e.
func (e Exit) Err() error {
	if e.Request != "" || e.Code == 0 && strings.HasPrefix(e.Reason, "guest-") && e.Reason != "guest-panic" {
		return nil
	}
	return fmt.Errorf("QEMU ended unexpectedly: %s", e)
}

// String returns a summary in one line, with QEMU's stderr on further lines.
func (e Exit) String() string {
	s := fmt.Sprintf("exit status %d", e.Code)
	if e.Signal != "" {
		s = "signal " + e.Signal
	}
	reason := e.Reason
	if reason == "" {
		reason = "none given by QEMU"
	}
	s += fmt.Sprintf(" after %.1f s, reason: %s", e.Ran.Seconds(), reason)
	if e.Request != "" {
		s += ", on request: " + e.Request
	}
	if e.Stderr != "" {
		s += "\nstderr: " + strings.TrimSpace(e.Stderr)
	}
	return s
}

// power is a power-on: a QEMU process and the local ends of its sockets.
type power struct {
	cmd          *exec.Cmd
	qmp          *qmp
	channels     map[string]net.Conn
	tpm          *emulatedTPM // nil: the machine has no TPM
	consoleStart int64
	started      time.Time

	mu      sync.Mutex
	request string

	ended chan struct{} // closed after exit is set and all output was read
	exit  Exit
}

// sockets collects the files that QEMU inherits (theirs), and the local ends of socket pairs
// (ours). The first inherited file has the number 3 in QEMU, as with exec.Cmd.ExtraFiles.
type sockets struct {
	theirs []*os.File
	ours   []net.Conn
}

func (s *sockets) inherit(f *os.File) int {
	s.theirs = append(s.theirs, f)
	return 2 + len(s.theirs)
}

// pair makes a socket pair. It returns the local end as a connection, and the descriptor number of
// the other end in QEMU.
func (s *sockets) pair(name string) (net.Conn, int, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot make a socket pair for %s: %w", name, err)
	}
	number := s.inherit(os.NewFile(uintptr(fds[1]), name))
	ours := os.NewFile(uintptr(fds[0]), name)
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot use the socket pair for %s: %w", name, err)
	}
	s.ours = append(s.ours, conn)
	return conn, number, nil
}

func (s *sockets) closeTheirs() {
	for _, f := range s.theirs {
		f.Close()
	}
}

// startQEMU starts QEMU and the goroutines that read its output. spec is the machine's
// specification with the setup of this power-on.
func (m *Machine) startQEMU(spec MachineSpec) (*power, error) {
	var (
		files    sockets
		fds      inherited
		p        = &power{ended: make(chan struct{}), channels: map[string]net.Conn{}, consoleStart: m.console.Offset()}
		err      error
		console  net.Conn
		monitor  net.Conn
		failWith = func(err error) (*power, error) {
			for _, c := range files.ours {
				c.Close()
			}
			p.tpm.end(0)
			return nil, err
		}
	)
	defer files.closeTheirs()
	if err := m.spec.emptyLogs(); err != nil {
		return failWith(err)
	}
	if console, fds.console, err = files.pair("console"); err != nil {
		return failWith(err)
	}
	if monitor, fds.qmp, err = files.pair("qmp"); err != nil {
		return failWith(err)
	}
	for _, name := range m.spec.Channels {
		conn, number, err := files.pair(name)
		if err != nil {
			return failWith(err)
		}
		p.channels[name] = conn
		fds.channels = append(fds.channels, number)
	}
	if m.spec.hasNIC() {
		for i := range m.spec.NIC.More + 1 {
			cable, err := m.spec.NIC.Network.plug(NICName(m.spec.Name, i))
			if err != nil {
				return failWith(err)
			}
			fds.nics = append(fds.nics, files.inherit(cable))
		}
	}
	if m.spec.TPM {
		if p.tpm, fds.tpm, err = m.spec.startTPM(&files); err != nil {
			return failWith(err)
		}
	}
	stderr, err := os.OpenFile(filepath.Join(m.spec.Dir, stderrFile), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return failWith(err)
	}
	defer stderr.Close()
	p.cmd = exec.Command(spec.QEMU.Command, spec.arguments(fds, m.macs)...)
	p.cmd.ExtraFiles, p.cmd.Stdout, p.cmd.Stderr = files.theirs, stderr, stderr
	p.started = time.Now()
	if m.spec.NIC.Network != nil {
		p.cmd.Env = append(os.Environ(), m.spec.NIC.Network.clock.environment(p.started)...)
	}
	// QEMU has its own process group, so a Ctrl-C in the terminal does not end it. The kernel kills
	// QEMU when the thread that started it ends (launch).
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p.qmp = newQMP(monitor)
	if err := p.launch(m, console); err != nil {
		return failWith(err)
	}
	return p, nil
}

// launch starts QEMU and returns when QEMU runs, or with an error. In PR_SET_PDEATHSIG, the parent
// of QEMU is the thread that started it, not the process. So a goroutine with its own thread starts
// QEMU and waits for its end.
func (p *power) launch(m *Machine, console net.Conn) error {
	started, consoleRead := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		waitErr := p.cmd.Wait()
		if m.spec.NIC.Network != nil {
			m.spec.NIC.Network.clock.sweep(p.cmd.Process.Pid)
		}
		limit := time.NewTimer(exitTime)
		defer limit.Stop()
		for _, done := range []<-chan struct{}{consoleRead, p.qmp.ended} {
			select {
			case <-done:
			case <-limit.C:
			}
		}
		console.Close()
		p.tpm.end(exitTime)
		p.finish(m, waitErr)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("%w (QEMU is in Debian's package qemu-system-x86)", err)
	}
	go func() {
		defer close(consoleRead)
		// The copy ends when QEMU closes its end. Its error is ignored: if the host's disk is full,
		// the console file is incomplete.
		io.Copy(m.console, console)
	}()
	return nil
}

// finish sets p.exit and closes p.ended. waitErr is the result of the wait for QEMU.
func (p *power) finish(m *Machine, waitErr error) {
	e := Exit{Ran: time.Since(p.started), Stderr: readTail(filepath.Join(m.spec.Dir, stderrFile), 16<<10)}
	var exit *exec.ExitError
	switch {
	case waitErr == nil:
	case errors.As(waitErr, &exit):
		e.Code = exit.ExitCode()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			e.Signal = status.Signal().String()
		}
	default:
		e.Code, e.Stderr = -1, e.Stderr+waitErr.Error()
	}
	for _, event := range p.qmp.log() {
		if event.Name == "SHUTDOWN" {
			e.Reason, _ = event.Data["reason"].(string)
		}
	}
	p.mu.Lock()
	e.Request = p.request
	p.mu.Unlock()
	p.exit = e
	close(p.ended)
}

// kill kills QEMU and waits for its end. request becomes Exit.Request, unless an earlier call has
// set it.
func (p *power) kill(request string) {
	p.mu.Lock()
	if p.request == "" {
		p.request = request
	}
	p.mu.Unlock()
	select {
	case <-p.ended:
		return
	default:
	}
	p.cmd.Process.Kill() // fails only if QEMU has already ended
	<-p.ended
}

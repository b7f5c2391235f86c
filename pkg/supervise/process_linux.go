package supervise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/service/exposition"
	"github.com/orlop-os/orlop/pkg/service/notify"
	"github.com/orlop-os/orlop/pkg/service/profile"
)

// pipes are the pipes from a process to machined. The fields with the suffix End are the read ends
// for machined; the others are the write ends for the process.
type pipes struct {
	output, outputEnd *os.File // standard output and error
	notify, notifyEnd *os.File // readiness messages; nil unless the service uses notify
}

func newPipes(withNotify bool) (p pipes, err error) {
	if p.outputEnd, p.output, err = os.Pipe(); err != nil {
		return p, err
	}
	if withNotify {
		if p.notifyEnd, p.notify, err = os.Pipe(); err != nil {
			p.outputEnd.Close()
			p.output.Close()
		}
	}
	return p, err
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// start starts the process of the service, and the goroutines that read its output, check its
// readiness and wait for its exit. The caller holds the lock of the manager.
func (m *Manager) start(u *unit) error {
	u.applyNext()
	s := u.service
	u.components, u.probe = nil, ""
	p, err := newPipes(s.Ready.Notify)
	if err != nil {
		return fmt.Errorf("service %q: cannot start: %w", s.Name, err)
	}
	defer closeAll(p.output, p.notify)
	process, err := m.startProcess(s, p)
	if err != nil {
		closeAll(p.outputEnd, p.notifyEnd)
		return fmt.Errorf("service %q: cannot start: %w", s.Name, err)
	}
	u.process = process
	u.starts++
	var ctx context.Context
	ctx, u.endProbe = context.WithCancel(context.Background())
	drained, before := make(chan struct{}), u.log.Newest()
	go func() {
		defer close(drained)
		// The output of a service must not end PID 1 by a panic. After a panic here, pump has
		// closed the pipe. The service then fails at its next write, and the manager restarts it.
		panics.Guarded("log of "+s.Name, func() { pump(p.outputEnd, u.log) })()
	}()
	if p.notifyEnd != nil {
		panics.Go("readiness of "+s.Name, func() { m.listen(s.Name, u, process, p.notifyEnd) })
	}
	if network, address := s.Ready.dial(); network != "" {
		go watchProbe(ctx, network, address, func(ok bool, detail string) { m.handleProbe(u, process, ok, detail) })
	}
	go m.await(u, process, drained, before)
	return nil
}

func (m *Manager) startProcess(s Service, p pipes) (*Process, error) {
	spec, files := s.Process, Files{Output: p.output}
	leave := func(f *os.File, variable string) {
		files.Extra = append(files.Extra, f)
		spec.Env = append(spec.Env[:len(spec.Env):len(spec.Env)], fmt.Sprintf("%s=%d", variable, 2+len(files.Extra)))
	}
	if p.notify != nil {
		leave(p.notify, notify.Env)
	}
	if s.Profile != "" {
		// Without the socket, the service runs without profiles.
		if socket, err := profile.Listen(s.Profile); err != nil {
			m.config.Event(s.Name, "failure", err.Error())
		} else {
			defer socket.Close()
			leave(socket, profile.Env)
		}
	}
	if s.Metrics != "" {
		// Without the socket, the service runs without metrics.
		if socket, err := exposition.Listen(s.Metrics); err != nil {
			m.config.Event(s.Name, "failure", err.Error())
		} else {
			defer socket.Close()
			leave(socket, exposition.Env)
		}
	}
	if s.Cgroup != "" {
		if err := m.config.Groups.Make(s.Cgroup, s.Limits); err != nil {
			return nil, err
		}
		dir, err := m.config.Groups.Open(s.Cgroup)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		files.Cgroup = dir
	}
	return m.config.Reaper.Start(spec, files)
}

// pump copies the output of the process to the ring. The process never waits, because the ring
// never waits for its readers.
func pump(r *os.File, log *LogRing) {
	defer r.Close()
	buffer := make([]byte, 4096)
	for {
		n, err := r.Read(buffer)
		if n > 0 {
			_, _ = log.Write(buffer[:n]) // never fails
		}
		if err != nil {
			log.Flush()
			return
		}
	}
}

// await waits for the exit of the process and passes it to the state machine. drained is closed
// when pump has read the whole output. before is the Seq of the last log line before the start of
// the process.
func (m *Manager) await(u *unit, p *Process, drained <-chan struct{}, before uint64) {
	<-p.Done()
	// The last lines in the pipe explain the exit, so await waits for pump. It waits a short time
	// only, because a child of the process may keep the pipe open.
	timeout := time.NewTimer(200 * time.Millisecond)
	defer timeout.Stop()
	select {
	case <-drained:
	case <-timeout.C:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	u.process, u.components, u.probe = nil, nil, ""
	u.endProbe()
	if s := u.service; s.Cgroup != "" && !s.LeaveChildren {
		if err := m.config.Groups.Kill(s.Cgroup); err != nil {
			m.config.Event(s.Name, "failure", err.Error())
		}
	}
	if u.state.Phase != Stopping {
		u.failure = p.Exit().String()
		if !p.Exit().OK() {
			u.failure += lastWords(u.log.Since(before))
		}
		m.config.Event(u.service.Name, "failure", u.failure)
	}
	m.step(u, Exited)
	m.converge()
}

// listen reads the readiness messages of the process until the pipe ends.
func (m *Manager) listen(name string, u *unit, p *Process, r *os.File) {
	defer r.Close()
	complain := func(text string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.config.Event(name, "failure", text)
	}
	err := notify.Read(r, func(message notify.Message) { m.handleMessage(u, p, message) }, func(line string, err error) {
		complain(fmt.Sprintf("sent an invalid readiness message: %q: %v", line, err))
	})
	if err != nil {
		complain(err.Error())
	}
}

func (m *Manager) handleMessage(u *unit, p *Process, message notify.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.process != p {
		return // the message is from a previous process, or from its child
	}
	same := func(c Component) bool { return c.Name == message.Component && c.Ready == message.Ready }
	if message.Component != "" && !slices.ContainsFunc(u.components, same) {
		word := map[bool]string{true: "is ready", false: "is not ready"}[message.Ready]
		m.config.Event(u.service.Name, "state", strings.TrimSpace(fmt.Sprintf("%s %s %s", message.Component, word, message.Detail)))
	}
	u.components = u.components.record(message, time.Now())
	m.step(u, map[bool]Event{true: Ready, false: NotReady}[u.components.ready()])
	m.converge()
}

func (m *Manager) handleProbe(u *unit, p *Process, ok bool, detail string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.process != p {
		return
	}
	u.probe = detail
	m.step(u, map[bool]Event{true: Ready, false: NotReady}[ok])
	m.converge()
}

// dial returns the network and the address to which a probe connects. Both are empty for a probe
// without a connection.
func (p Probe) dial() (network, address string) {
	switch {
	case p.Unix != "":
		return "unix", p.Unix
	case p.TCP != "":
		return "tcp", p.TCP
	}
	return "", ""
}

// Intervals and limits of a connection probe. Until the first success, a probe runs every
// probeStarting, because other services wait for this service. After about 20 seconds of failures
// it runs every probeFailing. A ready service is probed every probeReady. It becomes unready only
// after probeFailures consecutive failures, probeFailing apart, because a busy machine can answer
// late.
const (
	probeStarting = 50 * time.Millisecond
	probeReady    = 10 * time.Second
	probeFailing  = time.Second
	probeTimeout  = 2 * time.Second
	probeFailures = 3
)

// watchProbe connects to the address repeatedly until the context ends. It calls report with the
// first result, and with each change of the result.
func watchProbe(ctx context.Context, network, address string, report func(ok bool, detail string)) {
	dialer := net.Dialer{Timeout: probeTimeout}
	ready, failures, wait := false, 0, time.Duration(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		c, err := dialer.DialContext(ctx, network, address)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			c.Close()
			failures, wait = 0, probeReady
			if !ready {
				ready = true
				report(true, "")
			}
		} else {
			if failures++; ready && failures == probeFailures {
				ready = false
				report(false, reason(err))
			} else if first {
				report(false, reason(err))
			}
			wait = probeStarting
			if ready || failures > 20*int(probeFailing/probeStarting) {
				wait = probeFailing
			}
		}
		timer.Reset(wait)
	}
}

// reason shortens an error, for example "dial unix /run/x.sock: connect: no such file or
// directory", to the address and the cause.
func reason(err error) string {
	var op *net.OpError
	if !errors.As(err, &op) || op.Addr == nil {
		return err.Error()
	}
	cause := op.Err
	if inner := errors.Unwrap(cause); inner != nil {
		cause = inner
	}
	return fmt.Sprintf("%s does not take connections: %v", op.Addr, cause)
}

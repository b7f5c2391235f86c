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

// pipes are the two pipes from a process.
type pipes struct {
	output, outputEnd *os.File // end of the process, end of machined
	notify, notifyEnd *os.File // nil unless the service uses notify
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

// start starts the service's process and the goroutines that read from it. The caller holds the
// manager's lock.
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
		// A panic caused by the output of a process must not end this process. After a panic the
		// pipe is closed; the service fails at its next write, and is restarted.
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
		// The service also runs without profiles.
		if socket, err := profile.Listen(s.Profile); err != nil {
			m.config.Event(s.Name, "failure", err.Error())
		} else {
			defer socket.Close()
			leave(socket, profile.Env)
		}
	}
	if s.Metrics != "" {
		// The service also runs without metrics.
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

// pump copies the output of the process to the ring, so the process never waits for a reader of the
// ring.
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

// await waits for the exit of the process. before is the number of the last log line before its
// start.
func (m *Manager) await(u *unit, p *Process, drained <-chan struct{}, before uint64) {
	<-p.Done()
	// The last lines in the pipe explain the exit. A child of the process may keep the pipe open.
	patience := time.NewTimer(200 * time.Millisecond)
	defer patience.Stop()
	select {
	case <-drained:
	case <-patience.C:
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

// listen reads the readiness messages of the process.
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
		return // from a child of a previous process
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

// dial returns the network and address of a probe, or empty strings.
func (p Probe) dial() (network, address string) {
	switch {
	case p.Unix != "":
		return "unix", p.Unix
	case p.TCP != "":
		return "tcp", p.TCP
	}
	return "", ""
}

// Intervals of a connection probe: short while other services wait for the service, long once it
// answers. A ready service becomes unready only after several consecutive failures, because a busy
// machine is slow.
const (
	probeStarting = 50 * time.Millisecond
	probeReady    = 10 * time.Second
	probeFailing  = time.Second
	probeTimeout  = 2 * time.Second
	probeFailures = 3
)

// watchProbe connects repeatedly until the context ends, and reports changes of the result.
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

// reason shortens "dial unix /run/x.sock: connect: no such file or directory".
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

package vm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// readyFD is the environment variable with the number of an inherited file descriptor. The
// descriptor is a pipe by which the runner reports that the cluster runs, or an error.
const readyFD = "ORLOP_QEMU_READY_FD"

// controlLimit bounds each request to the runner.
const controlLimit = time.Minute

// runner is the state of the process that runs a cluster: the network and the machines.
type runner struct {
	dir     string
	network *Network
	stop    context.CancelFunc

	adding   sync.Mutex // serializes the addition of machines
	mu       sync.Mutex
	spec     ClusterSpec // add appends machines to it
	machines map[string]*Machine
	forwards []ForwardStatus
	redfish  *redfishEndpoint // nil: the cluster has no Redfish service
}

// Run runs the cluster in the directory dir (spec.json) until ctx ends or a client ends the
// cluster. Launch starts a background process that calls Run. A command that calls Launch has a
// (hidden) subcommand for this process.
func Run(ctx context.Context, dir string) (err error) {
	ready := readyPipe()
	defer func() { ready(err) }()
	dir, err = filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	spec, err := ReadSpec(dir)
	if err != nil {
		return err
	}
	lock, err := takeLock(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r := &runner{dir: dir, spec: spec, machines: map[string]*Machine{}, stop: stop}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return err
	}
	listener, release, err := listenControl(dir)
	if err != nil {
		return err
	}
	defer release()
	server := &http.Server{Handler: r.handler(), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	ready(nil)
	select {
	case <-ctx.Done():
	case err := <-served:
		return fmt.Errorf("cluster %s: control socket: %w", spec.Name, err)
	}
	end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return server.Shutdown(end) // waits for the answer to the request that ended the runner
}

// readyPipe returns a function that reports to Launch that the cluster runs (nil), or an error.
// Only the first call has an effect.
func readyPipe() func(error) {
	fd, err := strconv.Atoi(os.Getenv(readyFD))
	if err != nil {
		return func(error) {} // Launch has not started this process
	}
	os.Unsetenv(readyFD)
	unix.CloseOnExec(fd)
	pipe := os.NewFile(uintptr(fd), "ready")
	var once sync.Once
	return func(err error) {
		once.Do(func() {
			defer pipe.Close()
			if err != nil {
				fmt.Fprint(pipe, err)
				return
			}
			io.WriteString(pipe, "ready") // fails if Launch has ended and needs no report
		})
	}
}

func (r *runner) start(ctx context.Context) error {
	var err error
	if r.network, err = NewNetwork(r.spec.Network); err != nil {
		return err
	}
	for _, m := range r.spec.Machines {
		if _, err := r.switchOn(ctx, m); err != nil {
			return err
		}
	}
	for _, f := range r.spec.Forwards {
		if _, err := r.forward(f); err != nil {
			return err
		}
	}
	if r.spec.Redfish != nil {
		if r.redfish, err = r.serveRedfish(*r.spec.Redfish); err != nil {
			return err
		}
	}
	return nil
}

// switchOn creates a machine of the cluster and switches it on.
func (r *runner) switchOn(ctx context.Context, m MachineSpec) (*Machine, error) {
	m.Dir, m.NIC.Network = filepath.Join(r.dir, m.Name), r.network
	if r.spec.Redfish != nil {
		m.Identity = m.Identity.orOf(r.spec.Name, m.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	machine, err := Start(ctx, m)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machines[m.Name] = machine
	return machine, nil
}

// add creates another machine, switches it on, and adds it to spec.json, which Resume reads.
func (r *runner) add(ctx context.Context, m MachineSpec) (MachineStatus, error) {
	r.adding.Lock()
	defer r.adding.Unlock()
	grown := r.spec
	grown.Machines = append(slices.Clone(grown.Machines), m)
	if err := grown.check(); err != nil {
		return MachineStatus{}, err
	}
	machine, err := r.switchOn(ctx, m)
	if err != nil {
		return MachineStatus{}, err
	}
	r.mu.Lock()
	r.spec.Machines = grown.Machines
	r.mu.Unlock()
	return machine.status(), writeSpec(r.dir, grown)
}

// machine returns the machine with a name; nil if it does not exist.
func (r *runner) machine(name string) *Machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machines[name]
}

func (r *runner) forward(f ForwardSpec) (ForwardStatus, error) {
	to := f.Addr
	if m := r.machine(f.Machine); m != nil && !to.IsValid() {
		to = m.Addr()
	}
	if !to.IsValid() {
		return ForwardStatus{}, fmt.Errorf("cluster %s: cannot forward to %s: no such machine, or it has no NIC, or no address is given", r.spec.Name, cmp.Or(f.Machine, f.Addr.String()))
	}
	made, err := r.network.Forward(f.HostPort, netip.AddrPortFrom(to, f.Port).String())
	if err != nil {
		return ForwardStatus{}, err
	}
	s := ForwardStatus{ForwardSpec: f, Addr: made.Addr}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forwards = append(r.forwards, s)
	return s, nil
}

func (r *runner) close() error {
	r.adding.Lock()
	defer r.adding.Unlock()
	var errs []error
	if r.redfish != nil {
		errs = append(errs, r.redfish.server.Close())
	}
	for _, m := range r.machines {
		errs = append(errs, m.Close())
	}
	if r.network != nil {
		errs = append(errs, r.network.Close())
	}
	return errors.Join(errs...)
}

// handler returns the handler of the control interface: JSON over HTTP on a Unix socket that only
// the owner of the directory can reach.
func (r *runner) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, r.status(), nil) })
	mux.HandleFunc("POST /end", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, struct{}{}, nil)
		r.stop()
	})
	mux.HandleFunc("POST /forwards", func(w http.ResponseWriter, q *http.Request) {
		var f ForwardSpec
		if err := json.NewDecoder(q.Body).Decode(&f); err != nil {
			answer(w, nil, fmt.Errorf("cluster %s: cannot read the request: %w", r.spec.Name, err))
			return
		}
		made, err := r.forward(f)
		answer(w, made, err)
	})
	mux.HandleFunc("POST /machines", func(w http.ResponseWriter, q *http.Request) {
		var m MachineSpec
		if err := json.NewDecoder(q.Body).Decode(&m); err != nil {
			answer(w, nil, fmt.Errorf("cluster %s: cannot read the request: %w", r.spec.Name, err))
			return
		}
		made, err := r.add(q.Context(), m)
		answer(w, made, err)
	})
	mux.HandleFunc("POST /machines/{name}/{action}", func(w http.ResponseWriter, q *http.Request) {
		ctx, cancel := context.WithTimeout(q.Context(), controlLimit)
		defer cancel()
		answer(w, struct{}{}, r.act(ctx, q.PathValue("name"), Action(q.PathValue("action"))))
	})
	mux.HandleFunc("POST /faults/{name}", func(w http.ResponseWriter, q *http.Request) {
		var f Faults
		err := json.NewDecoder(q.Body).Decode(&f)
		if err == nil {
			err = r.network.SetFaults(q.PathValue("name"), f)
		}
		answer(w, struct{}{}, err)
	})
	return mux
}

// answer writes the result as JSON; if err is not nil, it writes a controlError instead.
func answer(w http.ResponseWriter, result any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusConflict)
		result = controlError{err.Error()}
	}
	json.NewEncoder(w).Encode(result) // a disconnected client needs no answer
}

type controlError struct {
	Error string `json:"error"`
}

func (r *runner) act(ctx context.Context, name string, action Action) error {
	m := r.machine(name)
	if m == nil {
		return fmt.Errorf("cluster %s: no machine is called %q", r.spec.Name, name)
	}
	switch action {
	case ActionPowerCut:
		m.PowerCut()
		return nil
	case ActionPowerOn:
		return m.PowerOn(ctx)
	case ActionPowerButton:
		return m.PowerButton(ctx)
	case ActionReset:
		return m.Reset(ctx)
	case ActionPause:
		return m.Pause(ctx)
	case ActionResume:
		return m.Resume(ctx)
	}
	return fmt.Errorf("cluster %s: machine %s: unknown action %q", r.spec.Name, name, action)
}

func (r *runner) status() Status {
	s := Status{Name: r.spec.Name, Dir: r.dir, PID: os.Getpid(), Subnet: r.network.Subnet(), Clock: r.network.Clock(), Gateway: r.network.Gateway()}
	// The error of the capture is ignored here, because Network.Close also reports it.
	s.Capture, _ = r.network.CaptureFile()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, spec := range r.spec.Machines {
		s.Machines = append(s.Machines, r.machines[spec.Name].status())
	}
	s.Forwards = append([]ForwardStatus{}, r.forwards...)
	if r.redfish != nil {
		s.Redfish = &r.redfish.status
	}
	return s
}

func (m *Machine) status() MachineStatus {
	p := m.current()
	state := MachineStatus{Name: m.Name(), Addr: m.Addr(), PoweredOn: p.started, Console: m.Console().Path(), Events: p.qmp.log()}
	select {
	case <-p.ended:
		state.Exit = &p.exit
	default:
		state.Running, state.PID = true, p.cmd.Process.Pid
	}
	return state
}

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Action is an action on a machine.
type Action string

// Each action calls the method of Machine with the same name.
const (
	ActionPowerCut    Action = "power-cut"
	ActionPowerOn     Action = "power-on"
	ActionPowerButton Action = "power-button"
	ActionReset       Action = "reset"
	ActionPause       Action = "pause"
	ActionResume      Action = "resume"
)

// Client is a client of the runner of a cluster.
type Client struct {
	dir  string
	http *http.Client
}

// Launch starts a new cluster in the background, and returns when all its machines are switched on.
// It creates the directory dir, which holds all files of the cluster, and fails with ErrExists if
// dir already holds a cluster. runner is the command of a process that calls Run; Launch appends
// "-dir" and the directory. The default runner is this executable with the argument "run".
func Launch(ctx context.Context, dir string, spec ClusterSpec, runner ...string) (*Client, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cluster: cannot create its directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, specFile)); err == nil {
		return nil, fmt.Errorf("cluster: cannot use %s: %w: resume or destroy it", dir, ErrExists)
	}
	if err := spec.absolute(); err != nil {
		return nil, err
	}
	if err := writeSpec(dir, spec); err != nil {
		return nil, err
	}
	return Resume(ctx, dir, runner...)
}

// Resume starts the stopped cluster in dir again, with its present disks. runner is as in Launch.
func Resume(ctx context.Context, dir string, runner ...string) (*Client, error) {
	if _, err := ReadSpec(dir); err != nil {
		return nil, err
	}
	if len(runner) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
		runner = []string{self, "run"}
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	defer log.Close()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	defer ours.Close()
	cmd := exec.Command(runner[0], append(runner[1:], "-dir", dir)...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{theirs}
	cmd.Env = append(os.Environ(), readyFD+"=3")
	// In its own session, the runner outlives this command and its terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("cluster: cannot start its runner: %w", err)
	}
	if err := awaitReady(ctx, ours); err != nil {
		cmd.Process.Kill() // fails if the runner has ended by itself
		cmd.Wait()
		return nil, fmt.Errorf("cluster: cannot start %s: %w", dir, err)
	}
	go cmd.Wait() // otherwise an ended runner would be a zombie of this process
	return Connect(dir)
}

// awaitReady waits for the report of the runner: "ready" or the text of an error. It returns nil
// after "ready". It fails if the runner or ctx ends first.
func awaitReady(ctx context.Context, pipe *os.File) error {
	stop := context.AfterFunc(ctx, func() { pipe.SetReadDeadline(time.Now()) })
	defer stop()
	word, err := io.ReadAll(pipe)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case len(word) == 0:
		return errors.New("its runner ended without a report; see " + logFile)
	case string(word) != "ready":
		return errors.New(string(word))
	}
	return nil
}

// Connect returns a client for the running cluster in dir. If the cluster exists but does not run,
// it fails with ErrNotRunning.
func Connect(dir string) (*Client, error) {
	if _, err := ReadSpec(dir); err != nil {
		return nil, err
	}
	pid, err := holder(dir)
	if err != nil {
		return nil, err
	}
	if pid == 0 {
		return nil, fmt.Errorf("cluster: cannot connect to %s: %w; end of its log:\n%s", dir, ErrNotRunning,
			readTail(filepath.Join(dir, logFile), 4<<10))
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialControl(ctx, dir) }
	return &Client{dir: dir, http: &http.Client{Timeout: controlLimit + 10*time.Second,
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}, nil
}

// Status returns the state of the cluster.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.call(ctx, http.MethodGet, "/status", nil, &s)
	return s, err
}

// Act performs an action on a machine.
func (c *Client) Act(ctx context.Context, machine string, action Action) error {
	return c.call(ctx, http.MethodPost, "/machines/"+machine+"/"+string(action), nil, nil)
}

// Add adds a machine to the cluster and returns when the machine is switched on. It ignores
// MachineSpec.Dir.
func (c *Client) Add(ctx context.Context, m MachineSpec) (MachineStatus, error) {
	one := ClusterSpec{Name: "one", Machines: []MachineSpec{m}}
	if err := one.absolute(); err != nil {
		return MachineStatus{}, err
	}
	var made MachineStatus
	err := c.call(ctx, http.MethodPost, "/machines", one.Machines[0], &made)
	return made, err
}

// Forward adds a forward from a port on 127.0.0.1 to the cluster.
func (c *Client) Forward(ctx context.Context, f ForwardSpec) (ForwardStatus, error) {
	var made ForwardStatus
	err := c.call(ctx, http.MethodPost, "/forwards", f, &made)
	return made, err
}

// SetFaults calls Network.SetFaults in the runner.
func (c *Client) SetFaults(ctx context.Context, name string, f Faults) error {
	return c.call(ctx, http.MethodPost, "/faults/"+name, f, nil)
}

// Stop ends the cluster. Its machines lose their power, and its directory stays; Resume starts the
// cluster again.
func (c *Client) Stop(ctx context.Context) error {
	asked := c.call(ctx, http.MethodPost, "/end", nil, nil)
	if err := killHolder(ctx, c.dir, asked != nil); err != nil {
		return errors.Join(asked, err)
	}
	return nil
}

// Destroy ends the cluster and removes its directory.
func (c *Client) Destroy(ctx context.Context) error { return Destroy(ctx, c.dir) }

// Destroy ends the cluster in dir, if it is running, and removes the directory. It ends only the
// runner of dir and its machines. It fails if dir holds no cluster.
func Destroy(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, specFile)); err != nil {
		return fmt.Errorf("cluster: no cluster in %s: %w", dir, err)
	}
	c, err := Connect(dir)
	switch {
	case err == nil:
		if err := c.Stop(ctx); err != nil {
			return err
		}
	case errors.Is(err, ErrNotRunning):
	default: // the specification is damaged, but the runner of the cluster may run
		if err := killHolder(ctx, dir, true); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("cluster: cannot remove its directory: %w", err)
	}
	return nil
}

func (c *Client) call(ctx context.Context, method, path string, request, result any) error {
	var body bytes.Buffer
	if request != nil {
		if err := json.NewEncoder(&body).Encode(request); err != nil {
			return fmt.Errorf("cluster: cannot encode the request: %w", err)
		}
	}
	q, err := http.NewRequestWithContext(ctx, method, "http://runner"+path, &body)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	resp, err := c.http.Do(q)
	if err != nil {
		return fmt.Errorf("cluster: cannot reach its runner in %s: %w", c.dir, err)
	}
	defer resp.Body.Close()
	decoder := json.NewDecoder(resp.Body)
	if resp.StatusCode != http.StatusOK {
		var failed controlError
		if err := decoder.Decode(&failed); err != nil || failed.Error == "" {
			return fmt.Errorf("cluster: its runner answered %s", resp.Status)
		}
		return errors.New(failed.Error)
	}
	if result == nil {
		return nil
	}
	if err := decoder.Decode(result); err != nil {
		return fmt.Errorf("cluster: cannot read the answer of its runner: %w", err)
	}
	return nil
}

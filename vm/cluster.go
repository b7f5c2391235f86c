package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// ClusterSpec describes a cluster: machines and their network in a background process.
type ClusterSpec struct {
	Name    string      `json:"name"`
	Network NetworkSpec `json:"network"`
	// Machines are the machines. Their directories are below the cluster's directory, and their Dir
	// is ignored.
	Machines []MachineSpec `json:"machines"`
	Forwards []ForwardSpec `json:"forwards,omitempty"`
	// Redfish describes the Redfish service for the power switches of the machines; nil: the
	// cluster has no Redfish service.
	Redfish *RedfishSpec `json:"redfish,omitempty"`
}

// RedfishSpec describes the Redfish service of a cluster (package redfish). It listens on 127.0.0.1
// only. The first start of the cluster creates a certificate and a password for the service in the
// directory of the cluster. Later starts use them again.
type RedfishSpec struct {
	// Port is the port on 127.0.0.1; 0: a free port, reported by Status.
	Port uint16 `json:"port,omitempty"`
	// User is the name of the only user, default "admin".
	User string `json:"user,omitempty"`
}

// RedfishStatus describes the Redfish service of a running cluster.
type RedfishStatus struct {
	// URL is the address of the service, "https://127.0.0.1:port".
	URL  string `json:"url"`
	User string `json:"user"`
	// PasswordFile is the file with the password. Only the owner of the file can read it.
	PasswordFile string `json:"passwordFile"`
	// Certificate is the certificate of the service in PEM, Fingerprint the fingerprint of its key
	// ("sha256:…").
	Certificate string `json:"certificate"`
	Fingerprint string `json:"fingerprint"`
}

// ForwardSpec describes a forward from 127.0.0.1 to a port of a machine or of the address Addr.
type ForwardSpec struct {
	Machine string `json:"machine,omitempty"`
	// Addr is the destination if Machine is empty, for example an address that moves between
	// machines.
	Addr netip.Addr `json:"addr,omitzero"`
	Port uint16     `json:"port"`
	// HostPort is the port on 127.0.0.1; 0: a free port, reported by Status.
	HostPort uint16 `json:"hostPort,omitempty"`
}

// Status is the state of a running cluster.
type Status struct {
	Name   string       `json:"name"`
	Dir    string       `json:"dir"`
	PID    int          `json:"pid"`
	Subnet netip.Prefix `json:"subnet"`
	// Clock is the clock of the network. PoweredOn and Exit.Ran of a machine are in the time of
	// this computer.
	Clock    Clock           `json:"clock,omitzero"`
	Gateway  netip.Addr      `json:"gateway"`
	Capture  string          `json:"capture,omitempty"`
	Machines []MachineStatus `json:"machines"`
	Forwards []ForwardStatus `json:"forwards"`
	Redfish  *RedfishStatus  `json:"redfish,omitempty"`
}

// MachineStatus is the state of a machine.
type MachineStatus struct {
	Name    string     `json:"name"`
	Addr    netip.Addr `json:"addr,omitzero"`
	Running bool       `json:"running"`
	PID     int        `json:"pid,omitempty"`
	// PoweredOn is the time of the last power-on.
	PoweredOn time.Time `json:"poweredOn"`
	// Exit describes the end of the last power-on. It is nil while the machine is running.
	Exit *Exit `json:"exit,omitempty"`
	// Console is the file with the whole output of the serial port.
	Console string  `json:"console"`
	Events  []Event `json:"events,omitempty"`
}

// ForwardStatus is an open forward.
type ForwardStatus struct {
	ForwardSpec
	// Addr is the address of the forward on the host, "127.0.0.1:port".
	Addr string `json:"addr"`
}

// Forward returns the address on the host for a machine's port; empty if the port has no forward.
func (s Status) Forward(machine string, port uint16) string {
	for _, f := range s.Forwards {
		if f.Machine == machine && f.Port == port {
			return f.Addr
		}
	}
	return ""
}

// Files of a cluster's directory.
const (
	specFile   = "spec.json"
	lockFile   = "runner.lock"
	logFile    = "runner.log"
	socketFile = "control.sock"

	redfishCertificate = "redfish.crt"
	redfishKey         = "redfish.key"
	redfishPassword    = "redfish.password"
)

// ErrNotRunning is the error for a cluster without a runner. The machines of the cluster have ended
// with the runner.
var ErrNotRunning = errors.New("the cluster is not running")

// ErrExists is the error for a directory that already holds a cluster.
var ErrExists = errors.New("there is a cluster already")

// writeSpec stores the specification of a cluster in its directory.
func writeSpec(dir string, spec ClusterSpec) error {
	data, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return fmt.Errorf("cluster: cannot encode the specification: %w", err)
	}
	if err := renameio.WriteFile(filepath.Join(dir, specFile), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("cluster: cannot write the specification: %w", err)
	}
	return nil
}

// ReadSpec reads the specification of the cluster in dir.
func ReadSpec(dir string) (ClusterSpec, error) {
	var spec ClusterSpec
	data, err := os.ReadFile(filepath.Join(dir, specFile))
	if err != nil {
		return spec, fmt.Errorf("cluster: no cluster in %s: %w", dir, err)
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return spec, fmt.Errorf("cluster: cannot read %s: %w", filepath.Join(dir, specFile), err)
	}
	return spec, nil
}

// check returns an error if the runner could not start the cluster. Launch calls check first, to
// return the error before it starts a runner.
func (c ClusterSpec) check() error {
	if c.Name == "" || len(c.Machines) == 0 {
		return errors.New("cluster: needs a name and at least one machine")
	}
	if err := (Clock{Dilation: c.Network.Dilation}).check(); err != nil {
		return fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	names := map[string]bool{}
	for _, m := range c.Machines {
		m.Dir = "unused"
		if _, err := m.withDefaults(); err != nil {
			return fmt.Errorf("cluster %s: %w", c.Name, err)
		}
		if names[m.Name] {
			return fmt.Errorf("cluster %s: two machines are called %s", c.Name, m.Name)
		}
		names[m.Name] = true
		for _, d := range m.Disks {
			if d.Image == "" {
				continue
			}
			if _, err := os.Stat(d.Image); err != nil {
				return fmt.Errorf("cluster %s: machine %s: cannot use its image (is it built?): %w", c.Name, m.Name, err)
			}
		}
	}
	for _, f := range c.Forwards {
		if names[f.Machine] == f.Addr.IsValid() || f.Port == 0 {
			return fmt.Errorf("cluster %s: cannot forward to %s:%d: no such machine or port, or both a machine and an address", c.Name, f.Machine, f.Port)
		}
	}
	return nil
}

// absolute makes all file paths absolute, because a later runner may have another working
// directory.
func (c *ClusterSpec) absolute() error {
	paths := []*string{&c.Network.Capture}
	for i := range c.Machines {
		m := &c.Machines[i]
		paths = append(paths, &m.Kernel.Image, &m.Kernel.Initrd, &m.Firmware.Code, &m.Firmware.Vars)
		for j := range m.Disks {
			paths = append(paths, &m.Disks[j].Image)
		}
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		whole, err := filepath.Abs(*p)
		if err != nil {
			return fmt.Errorf("cluster %s: %w", c.Name, err)
		}
		*p = whole
	}
	return nil
}

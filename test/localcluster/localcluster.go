// Package localcluster creates clusters of emulated machines for long measurements. It uses
// orlopctl, like a user.
package localcluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/vm"
)

const (
	// patience is the deadline for a slow operation: the creation of the cluster, a join, or an
	// import of images. It is in the time of the machines.
	patience = 20 * time.Minute
	// teardown is the deadline for the end of the machines.
	teardown = 2 * time.Minute
)

// Cluster describes the cluster that Create creates.
type Cluster struct {
	Name string
	// Bin is the directory of orlopctl, Image the directory of the system's image.
	Bin, Image string
	// Dir is the directory for the files of orlopctl. Create empties it.
	Dir                    string
	ControlPlanes, Workers int
	MemoryMiB              int // memory of each machine; 0: the default of orlopctl
	WorkerMemoryMiB        int // memory of each worker; 0: MemoryMiB
	CPUs                   int // processors of each machine; 0: the default of orlopctl
	// factor of the time dilation of the machines (vm.Clock); 0: no dilation
	Dilation int
	// Patch is the path of a patch for the configurations of control-plane machines; empty: no
	// patch.
	Patch string
	// Operator is the directory of the operator CA that the image trusts. If it is empty, orlopctl
	// uses the directory operator beside Image.
	Operator string
}

// Kubeconfig returns the path of the cluster's kubeconfig.
func (c Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "kubeconfig") }

// Machines returns the name of the orlopctl context of each machine. The key is the name of the
// machine.
func (c Cluster) Machines() map[string]string {
	all := map[string]string{"cp1": c.Name}
	for n := 2; n <= c.ControlPlanes; n++ {
		name := "cp" + strconv.Itoa(n)
		all[name] = c.Name + "-" + name
	}
	for n := 1; n <= c.Workers; n++ {
		name := "w" + strconv.Itoa(n)
		all[name] = c.Name + "-" + name
	}
	return all
}

// Create deletes an existing cluster and its files, creates the cluster, and waits until it is
// healthy.
func (c Cluster) Create(ctx context.Context) error {
	if err := c.Destroy(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		return fmt.Errorf("cluster %s: cannot empty its directory: %w", c.Name, err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("cluster %s: cannot create its directory: %w", c.Name, err)
	}
	return c.Orlopctl(ctx, c.createArgs()...)
}

// createArgs returns the arguments of `orlopctl cluster create`. It omits the flag of a field with
// the value 0, so orlopctl uses its default. orlopctl rejects values below its limits, such as 0
// MiB.
func (c Cluster) createArgs() []string {
	args := []string{"cluster", "create", c.Name, "--image", c.Image, "--timeout", c.patience().String()}
	for _, number := range []struct {
		flag  string
		value int
	}{
		{"--control-planes", c.ControlPlanes},
		{"--workers", c.Workers},
		{"--memory", c.MemoryMiB},
		{"--worker-memory", c.WorkerMemoryMiB},
		{"--cpus", c.CPUs},
		{"--time-dilation", c.Dilation},
	} {
		if number.value != 0 {
			args = append(args, number.flag, strconv.Itoa(number.value))
		}
	}
	for _, file := range []struct{ flag, path string }{{"--config-patch", c.Patch}, {"--operator", c.Operator}} {
		if file.path != "" {
			args = append(args, file.flag, file.path)
		}
	}
	return args
}

// Import imports the images of an archive on each machine.
func (c Cluster) Import(ctx context.Context, archive string) error {
	for _, machine := range c.Machines() {
		if err := c.Orlopctl(ctx, "--context", machine, "image", "import", archive); err != nil {
			return err
		}
	}
	return nil
}

// Healthy waits until each machine is healthy.
func (c Cluster) Healthy(ctx context.Context) error {
	for _, machine := range c.Machines() {
		if err := c.Orlopctl(ctx, "--context", machine, "health", "--timeout", c.patience().String()); err != nil {
			return err
		}
	}
	return nil
}

// patience returns the constant patience, converted to the time of this computer.
func (c Cluster) patience() time.Duration { return vm.Clock{Dilation: c.Dilation}.Outside(patience) }

// Power returns a client for the power switches of the machines and for their network.
func (c Cluster) Power() (*vm.Client, error) { return vm.Connect(c.clusterDir()) }

// Connect connects to the management API of a machine. The parameter name is the name of the
// machine's context, as in the result of Machines.
func (c Cluster) Connect(ctx context.Context, name string) (*client.Client, error) {
	text, err := os.ReadFile(c.contexts())
	if err != nil {
		return nil, fmt.Errorf("cluster %s: cannot read its contexts: %w", c.Name, err)
	}
	var file struct {
		Contexts map[string]struct{ Endpoint, ServerName, CA, Cert, Key string }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("cluster %s: cannot read its contexts: %w", c.Name, err)
	}
	known, ok := file.Contexts[name]
	if !ok {
		return nil, fmt.Errorf("cluster %s: there is no context %s", c.Name, name)
	}
	cert, err := tls.X509KeyPair([]byte(known.Cert), []byte(known.Key))
	if err != nil {
		return nil, fmt.Errorf("context %s: %w", name, err)
	}
	e := client.Endpoint{Address: known.Endpoint, ServerName: known.ServerName, Cert: cert, CA: x509.NewCertPool()}
	if !e.CA.AppendCertsFromPEM([]byte(known.CA)) {
		return nil, fmt.Errorf("context %s: its CA is no certificate", name)
	}
	return client.Dial(ctx, e)
}

// Destroy ends the machines and deletes them, even if ctx has ended. If the cluster does not exist,
// it does nothing.
func (c Cluster) Destroy(ctx context.Context) error {
	if _, err := os.Stat(c.clusterDir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	return c.Orlopctl(ctx, "cluster", "destroy", c.Name)
}

func (c Cluster) contexts() string { return filepath.Join(c.Dir, "config") }

func (c Cluster) clusterDir() string { return filepath.Join(c.Dir, "clusters", c.Name) }

// Orlopctl runs orlopctl, and passes its output to the output of this process.
func (c Cluster) Orlopctl(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, c.patience()+time.Minute)
	defer cancel()
	program := exec.CommandContext(ctx, filepath.Join(c.Bin, "orlopctl"), args...)
	program.Env = append(os.Environ(), "ORLOP_CONFIG="+c.contexts(), "KUBECONFIG="+c.Kubeconfig())
	program.Stdout, program.Stderr = os.Stdout, os.Stderr
	if err := program.Run(); err != nil {
		return fmt.Errorf("orlopctl %v: %w", args, err)
	}
	return nil
}

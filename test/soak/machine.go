package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/test/bundlesender"
	"github.com/orlop-os/orlop/test/machinestate"
	"github.com/orlop-os/orlop/vm"
)

const (
	machineName = "soak"
	diskName    = "disk0"
	diskMiB     = 8192
	memoryMiB   = 4096
	// callLimit is the deadline of one call. On an emulated processor, the first TLS handshake
	// takes a second.
	callLimit = 20 * time.Second
	// every is the interval at which until polls a machine.
	every = 250 * time.Millisecond
)

// address is the first address that the closed network of a machine assigns.
const address = "10.77.0.11"

var endpoint = "https://" + net.JoinHostPort(address, strconv.Itoa(paths.PortKubernetes))

// machine is a running machine in its own closed network, with the certificate of the operator.
type machine struct {
	*vm.Machine
	network  *vm.Network
	operator tls.Certificate
	identity string // fingerprint of the machine's key; answers reads it from the console
}

// powerOn switches on the machine whose files are in dir. If dir has no disk, vm copies the image.
func powerOn(ctx context.Context, o options, dir string, disk vm.Disk) (*machine, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(o.operator, "admin.crt"), filepath.Join(o.operator, "admin.key"))
	if err != nil {
		return nil, fmt.Errorf("operator: cannot read its certificate: %w; the flag -operator names the directory of the operator that the image was built for", err)
	}
	network, err := vm.NewNetwork(vm.NetworkSpec{})
	if err != nil {
		return nil, err
	}
	disk.Name, disk.Image, disk.SizeMiB = diskName, filepath.Join(o.image, "disk.raw"), diskMiB
	m, err := vm.Start(ctx, vm.MachineSpec{Name: machineName, Dir: dir, MemoryMiB: memoryMiB, Disks: []vm.Disk{disk}, NIC: vm.NIC{Network: network}, Watchdog: true})
	if err != nil {
		return nil, errors.Join(err, network.Close())
	}
	return &machine{Machine: m, network: network, operator: cert}, nil
}

// The method off ends the machine and its network.
func (m *machine) off() error { return errors.Join(m.Close(), m.network.Close()) }

// answers waits until the machine answers a call of the operator.
func (m *machine) answers(ctx context.Context) error {
	match, err := m.WaitConsole(ctx, machinestate.IdentityLine)
	if err != nil {
		return err
	}
	m.identity = match[1]
	return m.until(ctx, "an answer", func(ctx context.Context, c *client.Client) (bool, error) {
		_, err := c.Machine.Version(ctx, &api.VersionRequest{})
		return err == nil, err
	})
}

// The method until polls the machine until done returns true. It connects again after errors, for
// example while the machine reboots. It fails if ctx ends or if the machine rejects the operator.
func (m *machine) until(ctx context.Context, what string, done func(context.Context, *client.Client) (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := errors.New("the condition is not met yet")
	for {
		err := m.call(ctx, func(ctx context.Context, c *client.Client) error {
			for {
				if ok, err := done(ctx, c); ok || err != nil {
					return err
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return fmt.Errorf("the condition is not met yet: %w", context.Cause(ctx))
				}
			}
		})
		if err == nil {
			return nil
		}
		if errors.Is(err, client.ErrRefused) || errors.Is(err, client.ErrUntrusted) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), last)
		}
	}
}

// call connects to the machine and calls do. callLimit is the deadline for the connection and all
// calls of do together.
func (m *machine) call(ctx context.Context, do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	c, err := m.dial(ctx)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, c), c.Close())
}

func (m *machine) dial(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, client.Endpoint{
		Address: address, Cert: m.operator, Fingerprint: m.identity,
		Dialer: func(ctx context.Context, to string) (net.Conn, error) { return m.network.DialContext(ctx, "tcp", to) },
	})
}

// documents makes the configuration of the machine with orlopctl.
func documents(ctx context.Context, o options, dir string) ([]byte, error) {
	secrets, file := filepath.Join(dir, "secrets.yaml"), filepath.Join(dir, documentsFile)
	for _, args := range [][]string{
		{"gen", "secrets", "--out", secrets},
		{"gen", "config", machineName, endpoint, "--cluster-name", machineName, "--secrets", secrets, "--out", file},
	} {
		if out, err := exec.CommandContext(ctx, filepath.Join(o.bin, "orlopctl"), args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("orlopctl gen %s: %w: %s; `make tools` builds it", args[1], err, out)
		}
	}
	return os.ReadFile(file)
}

func (m *machine) apply(ctx context.Context, documents []byte) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.Config.Apply(ctx, &api.ApplyRequest{Documents: documents, Filename: machineName + ".yaml"})
		return err
	})
}

// configuration returns the active configuration of the machine. It returns an empty string if the
// machine has no configuration.
func (m *machine) configuration(ctx context.Context) (string, error) {
	var text string
	err := m.call(ctx, func(ctx context.Context, c *client.Client) error {
		s, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "configuration"})
		if err != nil || !s.Value.GetStructValue().GetFields()["present"].GetBoolValue() {
			return err
		}
		answer, err := c.Config.Get(ctx, &api.GetConfigRequest{})
		text = string(answer.GetDocuments())
		return err
	})
	return text, err
}

// status returns the status of the last upgrade, which can be in progress.
func (m *machine) status(ctx context.Context) (s *api.UpgradeStatus, err error) {
	err = m.call(ctx, func(ctx context.Context, c *client.Client) error {
		s, err = c.Upgrade.Status(ctx, &api.UpgradeStatusRequest{})
		return err
	})
	return s, err
}

// healthy waits until the machine reports that its cluster is healthy.
func (m *machine) healthy(ctx context.Context) error {
	return m.until(ctx, "health", func(ctx context.Context, c *client.Client) (bool, error) {
		stream, err := c.Cluster.Health(ctx, &api.HealthRequest{Once: true})
		if err != nil {
			return false, err
		}
		answer, err := stream.Recv()
		return answer.GetHealthy(), err
	})
}

// outcome waits until the last upgrade has ended, and returns its status.
func (m *machine) outcome(ctx context.Context) (*api.UpgradeStatus, error) {
	var last *api.UpgradeStatus
	err := m.until(ctx, "outcome of the upgrade", func(ctx context.Context, c *client.Client) (bool, error) {
		s, err := c.Upgrade.Status(ctx, &api.UpgradeStatusRequest{})
		last = s
		return err == nil && ended(s), err
	})
	return last, err
}

// ends waits until the last upgrade has ended. It fails if the phase or the running version differs
// from the given values.
func (m *machine) ends(ctx context.Context, phase, version string) error {
	s, err := m.outcome(ctx)
	if err == nil && (s.Phase != phase || s.Running != version) {
		err = fmt.Errorf("version %s runs, and the upgrade to %s is %q: %s", s.Running, s.To, s.Phase, s.Reason)
	}
	return err
}

// ended reports whether the upgrade has ended: its phase is final and no operation runs.
func ended(s *api.UpgradeStatus) bool { return slot.Phase(s.Phase).Done() && s.Operation == "" }

// upgrade uploads the part of a bundle that the machine does not have yet, and returns the version
// of the bundle. It does not wait for the upgrade.
func (m *machine) upgrade(ctx context.Context, bundle string) (string, error) {
	file, err := os.Open(bundle)
	if err != nil {
		return "", fmt.Errorf("bundle: %w; `make versions` builds it", err)
	}
	defer file.Close()
	c, err := m.dial(ctx)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return bundlesender.Send(ctx, c, file)
}

func (m *machine) rollback(ctx context.Context) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.Upgrade.Rollback(ctx, &api.RollbackRequest{})
		return err
	})
}

// kubernetes requests a kubeconfig from the machine and returns a client of its cluster.
func (m *machine) kubernetes(ctx context.Context) (kube kubernetes.Interface, err error) {
	err = m.call(ctx, func(ctx context.Context, c *client.Client) error {
		answer, err := c.Cluster.Kubeconfig(ctx, &api.KubeconfigRequest{Server: endpoint})
		if err != nil {
			return err
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(answer.Kubeconfig)
		if err != nil {
			return err
		}
		config.Dial, config.Timeout = m.network.DialContext, callLimit
		kube, err = kubernetes.NewForConfig(config)
		return err
	})
	return kube, err
}

// write creates this number of objects in the cluster. It calls acknowledged after each successful
// request. The parameter first is the number in the name of the first object.
func (m *machine) write(ctx context.Context, first, count int, acknowledged func(name string) error) error {
	kube, err := m.kubernetes(ctx)
	if err != nil {
		return err
	}
	for i := range count {
		name := fmt.Sprintf("written-%04d", first+i)
		object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name}, Data: map[string]string{"n": name}}
		if _, err := kube.CoreV1().ConfigMaps("default").Create(ctx, object, meta.CreateOptions{}); err != nil {
			return fmt.Errorf("object %s: cannot write: %w", name, err)
		}
		if err := acknowledged(name); err != nil {
			return err
		}
	}
	return nil
}

// kept returns the names of the objects that the cluster has.
func (m *machine) kept(ctx context.Context) (map[string]bool, error) {
	kube, err := m.kubernetes(ctx)
	if err != nil {
		return nil, err
	}
	list, err := kube.CoreV1().ConfigMaps("default").List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, object := range list.Items {
		names[object.Name] = true
	}
	return names, nil
}

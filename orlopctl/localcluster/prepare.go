package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/kubeconfig"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/vm"
)

// prepare reads and checks all inputs before any machine starts.
func (c *creation) prepare() error {
	if err := c.options.findImage(); err != nil {
		return err
	}
	var err error
	if c.admin, err = readAdmin(c.options.operator); err != nil {
		return err
	}
	if c.secrets, err = gen.NewSecrets(); err != nil {
		return err
	}
	if err := c.readPatch(); err != nil {
		return err
	}
	return c.checkName()
}

// findImage finds the disk image and the operator's directory. Usually both are in the same
// directory.
func (o *options) findImage() error {
	if info, err := os.Stat(o.image); err == nil && info.IsDir() {
		if o.operator == "" {
			o.operator = filepath.Join(filepath.Dir(filepath.Clean(o.image)), "operator")
		}
		o.image = filepath.Join(o.image, "disk.raw")
	}
	if _, err := os.Stat(o.image); err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("image: cannot find: %w", err), Hint: "build it with `make image`"}
	}
	if o.operator == "" {
		return exit.Usagef("--operator: cannot create a cluster without it: expected the directory of the operator CA in the image")
	}
	return nil
}

// readAdmin reads the credentials in the operator's directory. It first renews the certificate if
// that is due.
func readAdmin(operator string) (c credentials, err error) {
	if err := gen.FreshAdmin(operator); err != nil {
		return c, err
	}
	if c.dir, err = filepath.Abs(operator); err != nil {
		return c, fmt.Errorf("operator: %w", err)
	}
	if c.cert, err = os.ReadFile(filepath.Join(operator, gen.AdminName+".crt")); err == nil {
		c.key, err = os.ReadFile(filepath.Join(operator, gen.AdminName+".key"))
	}
	if err != nil {
		return c, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("operator: cannot read its certificate: %w", err), Hint: "the image accepts only the operator CA that it was built with; name its directory with --operator"}
	}
	return c, nil
}

// checkName returns an error if another cluster, a context or the kubeconfig already has the name.
func (c *creation) checkName() error {
	if _, err := os.Stat(c.dir); err == nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("cluster %q: cannot create: it exists already", c.name), Hint: "`orlopctl cluster destroy " + c.name + "` removes it; `cluster start` switches it on"}
	}
	// There is no local cluster with this name. A context with the name belongs to another cluster,
	// and may hold the only key to a machine.
	known, err := contexts.Load()
	if err != nil {
		return err
	}
	for _, name := range clusterContexts(c.name) {
		if _, exists := known.Contexts[name]; exists {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("cluster %q: cannot create: context %q of another machine exists already", c.name, name), Hint: "choose another name; `orlopctl config delete-context " + name + "` forgets the context"}
		}
	}
	path, err := kubeconfig.Path()
	if err != nil {
		return err
	}
	kube, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kubeconfig: cannot read: %w", err)
	}
	if kubeconfig.HasCluster(kube, c.name) {
		return &exit.Error{
			Code: exit.Usage, Err: fmt.Errorf("cluster %q: cannot create: the kubeconfig %s already contains another cluster with this name", c.name, path),
			Hint: "choose another name, or name another file in KUBECONFIG; `kubectl config delete-cluster " + c.name + "` removes it",
		}
	}
	return nil
}

// readPatch reads and checks the patch before any machine starts. For the check it uses the
// addresses that the machines will get.
func (c *creation) readPatch() error {
	if c.options.patchFile == "" {
		return nil
	}
	var err error
	if c.patch, err = c.ios.ReadFile(c.options.patchFile); err != nil {
		return err
	}
	var addresses []string
	for n := range c.options.controlPlanes {
		addresses = append(addresses, fmt.Sprintf("10.77.0.%d", 11+n))
	}
	_, err = c.configuration(firstMachine, addresses)
	return err
}

// configuration returns the configuration of a control-plane machine, with the patch. addresses are
// the addresses of all control-plane machines.
func (c *creation) configuration(name string, addresses []string) ([]byte, error) {
	made := gen.Config{
		Name: name, Cluster: c.name, Secrets: c.secrets,
		Endpoint: "https://" + net.JoinHostPort(addresses[0], strconv.Itoa(paths.PortKubernetes)),
		SANs:     []string{"127.0.0.1", "localhost"}, // addresses on this computer
	}
	if len(addresses) > 1 {
		made.ControlPlanes = addresses
	}
	text, err := made.Documents()
	if err != nil || c.patch == nil {
		return text, err
	}
	if text, err = config.Merge(text, c.patch); err != nil {
		return nil, exit.Usagef("--config-patch %s: cannot use: %w", c.options.patchFile, err)
	}
	if _, problems := config.Parse(name+".yaml", text); problems.Err() != nil {
		return nil, exit.Usagef("--config-patch %s: cannot use: the configuration is not valid with it: %w", c.options.patchFile, problems.Err())
	}
	return text, nil
}

// powerOn starts the machines and the timeline.
func (c *creation) powerOn(ctx context.Context) error {
	kubernetes, err := freePort(paths.PortKubernetes)
	if err != nil {
		return err
	}
	management, err := freePort(paths.PortApid)
	if err != nil {
		return err
	}
	runner, err := runnerCommand()
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, qemuTimeout)
	defer cancel()
	running, err := vm.Launch(starting, c.dir, vm.ClusterSpec{
		Name: c.name, Network: vm.NetworkSpec{Dilation: c.options.dilation, Capture: c.options.capture},
		Machines: c.options.machineSpecs(), Forwards: c.options.forwards(kubernetes, management),
		Redfish: c.options.redfishSpec(),
	}, runner...)
	if err != nil {
		return err
	}
	status, err := running.Status(starting)
	if err != nil {
		return err
	}
	for _, m := range status.Machines {
		c.machines = append(c.machines, member{m, status.Forward(m.Name, paths.PortApid)})
	}
	first := c.first().status
	c.failed, c.kubeAddress = first, status.Forward(firstMachine, paths.PortKubernetes)
	c.timeline = newTimeline(c.ios, first.PoweredOn, status.Clock)
	c.timeline.add("power on", strconv.Itoa(c.options.memory)+" MiB, "+strconv.Itoa(c.options.cpus)+" processors, console in "+first.Console)
	if status.Redfish != nil {
		c.timeline.add("redfish", redfishAccess(status.Redfish))
	}
	return nil
}

// first returns the first control-plane machine.
func (c *creation) first() member { return c.machines[0] }

// otherControlPlanes returns the control-plane machines after the first.
func (c *creation) otherControlPlanes() []member {
	return c.machines[1:max(1, c.options.controlPlanes)]
}

// workers returns the workers.
func (c *creation) workers() []member { return c.machines[max(1, c.options.controlPlanes):] }

// freePort returns a free TCP port on loopback. It returns port usual if that is free.
func freePort(usual uint16) (uint16, error) {
	for _, want := range []uint16{usual, 0} {
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(want))))
		if err != nil {
			continue
		}
		port := listener.Addr().(*net.TCPAddr).Port
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("port %d: cannot release: %w", port, err)
		}
		return uint16(port), nil
	}
	return 0, errors.New("ports: cannot find a free port on 127.0.0.1")
}

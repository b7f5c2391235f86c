package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/health"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/kubeconfig"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/vm"
)

const (
	createTimeout = 15 * time.Minute
	// machineName is the name of the first machine of a local cluster.
	machineName = "cp1"
	// maxControlPlanes bounds a local cluster. etcd itself advises seven members at most, and each
	// member is a machine on this computer.
	maxControlPlanes = 7
	// consoleLines is the number of console lines that a failed creation prints.
	consoleLines = 30
)

// creation is one run of `cluster create`.
type creation struct {
	ios            *iostreams.Streams
	conn           *connect.Connector
	name, dir      string
	image          string // the disk image
	operator       string // directory of the operator CA in the image
	memory, cpus   int
	capture        string // file for all packets; empty: no capture
	dilation       int    // factor by which time passes more slowly in the machines
	workerMemory   int    // 0: the same as the other machines
	patchFile      string // patch for the configurations of the control-plane machines
	patch          []byte
	diskGiB        int64
	controlPlanes  int
	workers        int
	others         []member // control-plane machines after the first
	joining        []member // workers
	timeline       *timeline
	machine        vm.MachineStatus
	apiAddress     string
	kubeAddress    string
	secrets        *gen.Secrets
	adminCert, key []byte
	signer         string // the operator's directory, absolute
}

func clusterCreateCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &creation{ios: ios, conn: conn}
	command := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Start machines in QEMU and make a cluster of them",
		Long: "Start a machine in QEMU from an image that was built with `make image`, apply a configuration to it and wait\n" +
			"until pods can run; with --control-planes, several machines that bootstrap the cluster together; with\n" +
			"--workers, additional machines that join it. The context and the kubeconfig of the cluster become the current\n" +
			"context and kubeconfig; the contexts of the other machines are called NAME-MACHINE.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			err := c.checkNumbers()
			if err != nil {
				return err
			}
			if c.name, c.dir, err = clusterDir(args); err != nil {
				return err
			}
			ctx, stop := connect.Interruptible()
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, conn.Timeout(createTimeout))
			defer cancel()
			return c.run(ctx)
		},
	}
	f := command.Flags()
	f.StringVar(&c.image, "image", filepath.Join("build", "qemu"), "directory with disk.raw, or a disk image")
	f.StringVar(&c.operator, "operator", "", "directory of the operator CA in the image (default: operator beside the image's directory)")
	f.IntVar(&c.memory, "memory", 2048, "memory of the machine in MiB")
	f.IntVar(&c.workerMemory, "worker-memory", 0, "memory of each worker in MiB (default: as the others)")
	f.StringVar(&c.patchFile, "config-patch", "", "file with a patch for the control-plane machines' configurations, as for `patch-config`; workers get its part about the cluster")
	f.IntVar(&c.cpus, "cpus", 2, "processors of the machine")
	f.StringVar(&c.capture, "capture", "", "file (pcap) to write every packet of the machines' network to, for as long as they run")
	f.IntVar(&c.dilation, "time-dilation", 1, "have time pass so many times more slowly for the machines (1 to 8): several emulated machines on few processors wait for each other in vain otherwise; times that are printed are the machines' then")
	f.IntVar(&c.controlPlanes, "control-planes", 1, "number of control-plane machines; three tolerate one failure, five tolerate two")
	f.IntVar(&c.workers, "workers", 0, "further machines, which join as workers")
	f.Int64Var(&c.diskGiB, "disk", 8, "size of its disk in GiB; the file is sparse")
	return command
}

func (c *creation) run(ctx context.Context) error {
	if err := c.prepare(); err != nil {
		return err
	}
	if err := c.powerOn(ctx); err != nil {
		return err
	}
	err := c.bringUp(ctx)
	if err == nil {
		err = c.bringUpWorkers(ctx)
	}
	c.timeline.clear()
	if err != nil {
		return c.explain(err)
	}
	return c.finish(ctx)
}

// prepare checks and loads all inputs before any machine starts.
func (c *creation) prepare() error {
	if info, err := os.Stat(c.image); err == nil && info.IsDir() {
		if c.operator == "" {
			c.operator = filepath.Join(filepath.Dir(filepath.Clean(c.image)), "operator")
		}
		c.image = filepath.Join(c.image, "disk.raw")
	}
	if _, err := os.Stat(c.image); err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("image: cannot find: %w", err), Hint: "build it with `make image`"}
	}
	if c.operator == "" {
		return exit.Usagef("--operator: cannot create a cluster without it: expected the directory of the operator CA in the image")
	}
	if err := gen.FreshAdmin(c.operator); err != nil {
		return err
	}
	var err error
	if c.signer, err = filepath.Abs(c.operator); err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	if c.adminCert, err = os.ReadFile(filepath.Join(c.operator, gen.AdminName+".crt")); err == nil {
		c.key, err = os.ReadFile(filepath.Join(c.operator, gen.AdminName+".key"))
	}
	if err != nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("operator: cannot read its certificate: %w", err), Hint: "the image accepts only the operator CA that it was built with; name its directory with --operator"}
	}
	if c.secrets, err = gen.NewSecrets(); err != nil {
		return err
	}
	if err := c.readPatch(); err != nil {
		return err
	}
	if _, err := os.Stat(c.dir); err == nil {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("cluster %q: cannot create: it exists already", c.name), Hint: "`orlopctl cluster destroy " + c.name + "` removes it; `cluster start` switches it on"}
	}
	// No cluster with this name exists. Contexts with these names belong to another cluster, and
	// may hold the only key to a machine.
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

func (c *creation) powerOn(ctx context.Context) error {
	var names []string
	for n := range c.controlPlanes {
		names = append(names, controlPlaneName(n+1))
	}
	for n := range c.workers {
		names = append(names, workerName(n+1))
	}
	forwards, err := c.forwardsOf(names[1:])
	if err != nil {
		return err
	}
	var machines []vm.MachineSpec
	for i, name := range names {
		memory := c.memory
		if i >= c.controlPlanes {
			memory = cmp.Or(c.workerMemory, c.memory)
		}
		machines = append(machines, vm.MachineSpec{Name: name, MemoryMiB: memory, CPUs: c.cpus, Disks: vm.BootDisk(c.image, c.diskGiB<<10), Watchdog: true})
	}
	runner, err := runnerCommand()
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, qemuTimeout)
	defer cancel()
	running, err := vm.Launch(starting, c.dir, vm.ClusterSpec{
		Name: c.name, Network: vm.NetworkSpec{Dilation: c.dilation, Capture: c.capture}, Machines: machines, Forwards: forwards,
	}, runner...)
	if err != nil {
		return err
	}
	status, err := running.Status(starting)
	if err != nil {
		return err
	}
	for i, m := range status.Machines {
		here := member{m, status.Forward(m.Name, paths.PortApid)}
		switch {
		case i == 0:
			c.machine = m
		case i < c.controlPlanes:
			c.others = append(c.others, here)
		default:
			c.joining = append(c.joining, here)
		}
	}
	c.apiAddress, c.kubeAddress = status.Forward(machineName, paths.PortApid), status.Forward(machineName, paths.PortKubernetes)
	c.timeline = newTimeline(c.ios, c.machine.PoweredOn, status.Clock)
	c.timeline.add("power on", strconv.Itoa(c.memory)+" MiB, "+strconv.Itoa(c.cpus)+" processors, console in "+c.machine.Console)
	return nil
}

// bringUp waits for the first answer of the machine, configures it and waits until it is healthy.
func (c *creation) bringUp(ctx context.Context) error {
	fingerprint, err := c.timeline.readConsole(ctx, c.machine.Console)
	if err != nil {
		return err
	}
	connection, pinned, err := c.firstAnswer(ctx, c.apiAddress, fingerprint)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }() // the process ends soon
	documents, err := c.documents(c.machine)
	if err != nil {
		return err
	}
	c.timeline.wait("the configuration is applied")
	if _, err := connection.Config.Apply(ctx, &api.ApplyRequest{Documents: documents, Filename: machineName + ".yaml"}); err != nil {
		return err
	}
	c.timeline.add("configuration applied", "")
	joined, err := c.configureOthers(ctx)
	if err != nil {
		return err
	}
	err = health.Wait(ctx, pinned, false, func(r health.Report) error {
		c.timeline.follow(ctx, connection)
		c.timeline.wait(waitingFor(r))
		return nil
	})
	if err != nil {
		return err
	}
	c.timeline.follow(ctx, connection)
	c.timeline.add("healthy", "pods can run")
	for i, m := range c.others {
		if err := c.joined(ctx, m, joined[i]); err != nil {
			c.machine = m.status // explain prints the console of this machine
			return err
		}
	}
	return nil
}

// waitingFor returns the failed checks of a report in one line.
func waitingFor(r health.Report) string {
	if r.Waiting != nil {
		return exit.Message(r.Waiting)
	}
	var missing []string
	for _, check := range r.Answer.Checks {
		if !check.Ok {
			missing = append(missing, strings.TrimSuffix(check.Name+": "+check.Detail, ": "))
		}
	}
	return strings.Join(missing, "; ")
}

// firstAnswer connects as soon as the machine answers. The fingerprint identifies the machine.
func (c *creation) firstAnswer(ctx context.Context, address, fingerprint string) (*client.Client, client.Endpoint, error) {
	e, err := contexts.Context{Endpoint: address, Fingerprint: fingerprint, Cert: string(c.adminCert), Key: string(c.key)}.Client()
	if err != nil {
		return nil, e, err
	}
	c.timeline.wait("the machine's API answers")
	for {
		dialing, cancel := context.WithTimeout(ctx, connect.DialTimeout)
		connection, err := client.Dial(dialing, e)
		cancel()
		if err == nil {
			version, err := connection.Machine.Version(ctx, &api.VersionRequest{})
			if err == nil {
				answered := c.timeline.clock.Now()
				c.timeline.follow(ctx, connection)
				c.timeline.addAt(answered, "API answers", "Orlop OS "+version.Version+", Kubernetes "+version.Kubernetes)
				return connection, e, nil
			}
			_ = connection.Close() // the next attempt opens a new connection
			if !exit.IsTemporary(err) {
				return nil, e, err
			}
		} else if !exit.IsTemporary(err) {
			return nil, e, err
		}
		if !connect.Sleep(ctx, connect.DialInterval/5) {
			return nil, e, errors.Join(context.Cause(ctx), err)
		}
	}
}

// documents makes the configuration of a control-plane machine. It stores the configuration and the
// cluster's secrets in the cluster's directory.
func (c *creation) documents(machine vm.MachineStatus) ([]byte, error) {
	addresses := []string{c.machine.Addr.String()}
	for _, m := range c.others {
		addresses = append(addresses, m.status.Addr.String())
	}
	text, err := c.configuration(machine.Name, addresses)
	if err != nil {
		return nil, err
	}
	if err := c.secrets.Write(filepath.Join(c.dir, "secrets.yaml"), true); err != nil {
		return nil, err
	}
	return text, secretfile.Write(filepath.Join(c.dir, machine.Name+".yaml"), text, true)
}

// configuration returns the configuration of a control-plane machine; addresses are those of all
// control-plane machines.
func (c *creation) configuration(name string, addresses []string) ([]byte, error) {
	made := gen.Config{
		Name: name, Cluster: c.name, Secrets: c.secrets,
		Endpoint: "https://" + net.JoinHostPort(addresses[0], strconv.Itoa(paths.PortKubernetes)),
		SANs:     []string{"127.0.0.1", "localhost"}, // the addresses on this computer
	}
	if len(addresses) > 1 {
		made.ControlPlanes = addresses
	}
	text, err := made.Documents()
	if err != nil || c.patch == nil {
		return text, err
	}
	if text, err = config.Merge(text, c.patch); err != nil {
		return nil, exit.Usagef("--config-patch %s: cannot use: %w", c.patchFile, err)
	}
	if _, problems := config.Parse(name+".yaml", text); problems.Err() != nil {
		return nil, exit.Usagef("--config-patch %s: cannot use: the configuration is not valid with it: %w", c.patchFile, problems.Err())
	}
	return text, nil
}

// readPatch reads and checks the patch before any machine starts. The check uses the addresses that
// the machines will have.
func (c *creation) readPatch() error {
	if c.patchFile == "" {
		return nil
	}
	var err error
	if c.patch, err = c.ios.ReadFile(c.patchFile); err != nil {
		return err
	}
	var addresses []string
	for n := range c.controlPlanes {
		addresses = append(addresses, fmt.Sprintf("10.77.0.%d", 11+n))
	}
	_, err = c.configuration(machineName, addresses)
	return err
}

// explain adds the end of the machine's console to an error. The machine is left as it is, for
// inspection.
func (c *creation) explain(err error) error {
	text, reading := os.ReadFile(c.machine.Console)
	if reading != nil {
		text = []byte(reading.Error())
	}
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(string(text), "\r", ""), "\n"), "\n")
	c.ios.Errorln("the end of the machine's console (" + c.machine.Console + "):")
	for _, line := range lines[max(0, len(lines)-consoleLines):] {
		c.ios.Errorln("  " + line)
	}
	code, _ := exit.Code(err)
	return &exit.Error{
		Code: code, Err: fmt.Errorf("cluster %s: cannot start: %s", c.name, exit.Message(err)),
		Hint: "the machine is still there: `orlopctl cluster status`, `orlopctl cluster destroy " + c.name + "`",
	}
}

// known returns the context of a machine, with the cluster's CA.
func (c *creation) known(address, name string) contexts.Context {
	return contexts.Context{
		Endpoint: address, ServerName: name, CA: c.secrets.Machine.Cert, Cert: string(c.adminCert), Key: string(c.key), Operator: c.signer,
	}
}

// finish stores the context and the kubeconfig, and prints the next commands to try.
func (c *creation) finish(ctx context.Context) error {
	stored := c.known(c.apiAddress, machineName)
	err := contexts.Change(func(f *contexts.File) error {
		f.Contexts[c.name], f.Current = stored, c.name
		return nil
	})
	if err != nil {
		return err
	}
	// From now on the cluster's CA identifies the machine. This call verifies that.
	endpoint, err := stored.Client()
	if err != nil {
		return err
	}
	return connect.Do(ctx, endpoint, func(connection *client.Client) error {
		answer, err := connection.Cluster.Kubeconfig(ctx, &api.KubeconfigRequest{Server: "https://" + c.kubeAddress})
		if err != nil {
			return err
		}
		path, err := kubeconfig.Path()
		if err != nil {
			return err
		}
		if _, err := kubeconfig.MergeFile(path, answer.Kubeconfig, false); err != nil {
			return err
		}
		c.ios.Printf("\nThe cluster %s is up. Its context is in ~/.orlop/config, its kubeconfig in %s. Try:\n\n%s", c.name, path, nextSteps)
		return nil
	})
}

const nextSteps = `  kubectl get nodes
  orlopctl services
  orlopctl get timeline
  orlopctl logs -f orchestrator-node
  orlopctl image list
  orlopctl reboot      # when it is back: orlopctl health
  orlopctl cluster destroy
`

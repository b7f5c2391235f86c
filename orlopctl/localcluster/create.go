package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orlopctl/clusterbuild"
	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/health"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/kubeconfig"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/vm"
)

const (
	// createTimeout is the default time limit of `cluster create`.
	createTimeout = 15 * time.Minute
	// consoleLines is the number of console lines that `cluster create` prints after a failure.
	consoleLines = 30
)

// creation is a run of `cluster create`.
type creation struct {
	ios       *iostreams.Streams
	name, dir string
	options   options

	patch   []byte // content of options.patchFile
	secrets *gen.Secrets
	admin   credentials

	machines    []member // in the order of options.machineNames
	kubeAddress string
	timeline    *timeline
	failed      vm.MachineStatus // explain prints the console of this machine
}

// credentials are the certificate and the key of the operator's admin, and the operator's
// directory.
type credentials struct {
	cert, key []byte
	dir       string // absolute path
}

// member is a running machine.
type member struct {
	status     vm.MachineStatus
	apiAddress string
}

func clusterCreateCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &creation{ios: ios}
	var fromFile clusterbuild.Options
	command := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Start machines in QEMU and make a cluster of them, or build the cluster of a file",
		Long: "Start a machine in QEMU from an image that was built with `make image`, apply a configuration and wait until pods\n" +
			"can run. With --control-planes, start several machines that bootstrap the cluster together. With --workers, start\n" +
			"additional machines that join the cluster. The new cluster becomes the current context, also of kubectl. The first\n" +
			"machine has the context NAME, and each other machine the context NAME-MACHINE.\n\n" +
			"With -f, build the cluster of a file (`orlopctl cluster export`) on existing machines that wait for a configuration. The cluster gets\n" +
			"new keys. The machines have the addresses in the file, or those of --machine. NAME is the name of the context then.",
		Example: "  orlopctl cluster create three --workers 2\n  orlopctl cluster create copy -f shop.yaml --machine m1=10.0.1.11,fingerprint=sha256:…",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if fromFile.File != "" {
				return c.buildFile(command, conn, fromFile, args)
			}
			if len(fromFile.Machines) > 0 || fromFile.OutDir != "" {
				return exit.Usagef("--machine and --out-dir: cannot be used without -f")
			}
			var err error
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
	c.options.register(command.Flags())
	fromFile.Register(command.Flags())
	return command
}

// buildFile builds the cluster of a file on existing machines.
func (c *creation) buildFile(command *cobra.Command, conn *connect.Connector, o clusterbuild.Options, args []string) error {
	var wrong []string
	command.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains([]string{"file", "machine", "out-dir", "operator"}, f.Name) {
			wrong = append(wrong, "--"+f.Name)
		}
	})
	if len(wrong) > 0 {
		return exit.Usagef("%s: cannot be used with -f: no machine is started in QEMU", strings.Join(wrong, ", "))
	}
	admin, err := adminOf(conn, c.options.operator)
	if err != nil {
		return err
	}
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	ctx, stop := connect.Interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, conn.Timeout(createTimeout))
	defer cancel()
	return clusterbuild.Run(ctx, c.ios, name, o, admin)
}

// adminOf returns the credentials in an operator's directory. If operator is empty, it returns the
// credentials of the flags or the context.
func adminOf(conn *connect.Connector, operator string) (clusterbuild.Credentials, error) {
	if operator != "" {
		admin, err := readAdmin(operator)
		return clusterbuild.Credentials{Cert: string(admin.cert), Key: string(admin.key), Operator: admin.dir}, err
	}
	_, chosen, err := conn.Chosen()
	return clusterbuild.Credentials{Cert: chosen.Cert, Key: chosen.Key, Operator: chosen.Operator}, err
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

// bringUp configures the control-plane machines, the first machine first. It waits until all of
// them are healthy.
func (c *creation) bringUp(ctx context.Context) error {
	first := c.first()
	fingerprint, err := c.timeline.readConsole(ctx, first.status.Console)
	if err != nil {
		return err
	}
	connection, pinned, err := c.firstAnswer(ctx, first.apiAddress, fingerprint)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }() // the process ends soon
	documents, err := c.documents(first.status)
	if err != nil {
		return err
	}
	c.timeline.wait("the configuration is applied")
	if _, err := connection.Config.Apply(ctx, &api.ApplyRequest{Documents: documents, Filename: firstMachine + ".yaml"}); err != nil {
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
	for i, m := range c.otherControlPlanes() {
		if err := c.joined(ctx, m, joined[i]); err != nil {
			c.failed = m.status
			return err
		}
	}
	return nil
}

// waitingFor describes the failed checks of a report in a single line, or the reason for a missing
// answer.
func waitingFor(r health.Report) string {
	if r.Waiting != nil {
		return exit.Message(r.Waiting)
	}
	return strings.Join(health.Failed(r.Answer), "; ")
}

// firstAnswer waits until a machine answers. It returns a connection and the endpoint. The
// fingerprint identifies the machine.
func (c *creation) firstAnswer(ctx context.Context, address, fingerprint string) (*client.Client, client.Endpoint, error) {
	e, err := contexts.Context{Endpoint: address, Fingerprint: fingerprint, Cert: string(c.admin.cert), Key: string(c.admin.key)}.Client()
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
		if backoff.Sleep(ctx, connect.DialInterval/5) != nil {
			return nil, e, errors.Join(context.Cause(ctx), err)
		}
	}
}

// documents returns the configuration of a control-plane machine. It also stores the configuration
// and the cluster's secrets in the cluster's directory.
func (c *creation) documents(machine vm.MachineStatus) ([]byte, error) {
	addresses := []string{c.first().status.Addr.String()}
	for _, m := range c.otherControlPlanes() {
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

// explain adds the next step to an error, and prints the end of the failed machine's console. It
// does not change the machine, so that the operator can inspect it.
func (c *creation) explain(err error) error {
	text, reading := os.ReadFile(c.failed.Console)
	if reading != nil {
		text = []byte(reading.Error())
	}
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(string(text), "\r", ""), "\n"), "\n")
	c.ios.Errorln("the end of the machine's console (" + c.failed.Console + "):")
	for _, line := range lines[max(0, len(lines)-consoleLines):] {
		c.ios.Errorln("  " + line)
	}
	code, _ := exit.Code(err)
	return &exit.Error{
		Code: code, Err: fmt.Errorf("cluster %s: cannot start: %s", c.name, exit.Message(err)),
		Hint: "the machine is still there: `orlopctl cluster status`, `orlopctl cluster destroy " + c.name + "`",
	}
}

// finish stores the context and the kubeconfig, and prints commands to try next.
func (c *creation) finish(ctx context.Context) error {
	stored := c.known(c.first())
	err := contexts.Change(func(f *contexts.File) error {
		f.Contexts[c.name], f.Current = stored, c.name
		return nil
	})
	if err != nil {
		return err
	}
	// From now on, the cluster's CA verifies the machine. The next call tests this.
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
		contextFile, err := contexts.Path()
		if err != nil {
			return err
		}
		c.ios.Printf("\nThe cluster %s is up. Its context is in %s, its kubeconfig in %s. Try:\n\n%s", c.name, contextFile, path, nextSteps)
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

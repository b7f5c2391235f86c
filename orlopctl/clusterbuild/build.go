// Package clusterbuild builds the cluster of a file (package clusterfile) on machines that wait for
// a configuration, for `orlopctl cluster create -f`.
//
// All checks come before the first machine gets a configuration. They check the file and the
// documents of each machine. They also check that no file would be overwritten, and that each
// machine answers and has no configuration yet.
package clusterbuild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orlopctl/clusterfile"
	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/health"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// Options are the flags of `cluster create` for a file.
type Options struct {
	File     string   // empty if the flag is not set
	Machines []string // in the form of clusterfile.ParseOverride
	OutDir   string
}

// Register adds the flags to a command.
func (o *Options) Register(f *pflag.FlagSet) {
	f.StringVarP(&o.File, "file", "f", "", "build the cluster of this file (orlopctl cluster export) on machines that wait for a configuration")
	f.StringArrayVar(&o.Machines, "machine", nil, "with -f: replace the address, endpoint and fingerprint of a machine of the file, as NAME=ADDRESS[,endpoint=HOST:PORT][,fingerprint=sha256:…]; repeatable")
	f.StringVar(&o.OutDir, "out-dir", "", "with -f: directory for the new secrets and the configurations (default: the name of the cluster)")
}

// Credentials are the certificate and the key of an admin, in PEM, and the directory of the
// operator CA. The directory is "" if it is unknown.
type Credentials struct{ Cert, Key, Operator string }

// builder holds the inputs and the generated keys of a build.
type builder struct {
	ios     *iostreams.Streams
	name    string // of the new context
	dir     string // for the secrets and the configurations
	file    *clusterfile.File
	secrets *gen.Secrets
	admin   Credentials
}

// Run builds the cluster. name is the name of the new context; if it is empty, the context has the
// name of the cluster.
func Run(ctx context.Context, ios *iostreams.Streams, name string, o Options, admin Credentials) error {
	b := &builder{ios: ios, name: name, admin: admin}
	if err := b.read(o); err != nil {
		return err
	}
	files, err := b.configurations()
	if err != nil {
		return err
	}
	if err := b.checkMachines(ctx); err != nil {
		return err
	}
	if err := b.store(files); err != nil {
		return err
	}
	if err := b.controlPlane(ctx, files); err != nil {
		return b.explain(err)
	}
	for _, m := range b.file.Role(config.RoleWorker) {
		if err := b.worker(ctx, m); err != nil {
			return b.explain(err)
		}
	}
	return b.finish()
}

// read reads the file and checks it, without a call to a machine. The documents of the machines are
// checked later, by configurations.
func (b *builder) read(o Options) error {
	text, err := b.ios.ReadFile(o.File)
	if err != nil {
		return err
	}
	file, err := clusterfile.Parse(text)
	if err != nil {
		return exit.Usagef("%s: cannot use: %w", o.File, err)
	}
	var overrides []clusterfile.Override
	for _, text := range o.Machines {
		one, err := clusterfile.ParseOverride(text)
		if err != nil {
			return exit.Usagef("--machine %w", err)
		}
		overrides = append(overrides, one)
	}
	if b.file, err = file.Move(overrides); err != nil {
		return exit.Usagef("%s: cannot use: %w", o.File, err)
	}
	if redacted := b.file.Redacted(); len(redacted) > 0 {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: cannot use: it lacks secrets: %s", o.File, strings.Join(redacted, ", ")), Hint: "an export has no secrets; write their values in place of (redacted), or remove the fields"}
	}
	for _, m := range b.file.Machines {
		if m.Fingerprint == "" {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("machine %s: cannot connect: its fingerprint is missing", m.Name), Hint: "its console shows the fingerprint; write it into the file, or pass --machine " + m.Name + "=" + m.Address + ",fingerprint=sha256:…"}
		}
	}
	if b.name == "" {
		b.name = b.file.Cluster.Name()
	}
	if b.dir = o.OutDir; b.dir == "" {
		b.dir = b.name
	}
	return b.checkNames()
}

// checkNames returns an error if the context or a file of the new cluster already exists.
func (b *builder) checkNames() error {
	known, err := contexts.Load()
	if err != nil {
		return err
	}
	if _, exists := known.Contexts[b.name]; exists {
		return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("cluster %q: cannot create: a context of this name exists already", b.name), Hint: "choose another name for the context: `orlopctl cluster create NAME -f FILE`"}
	}
	secrets := filepath.Join(b.dir, secretsFile)
	if _, err := os.Lstat(secrets); !errors.Is(err, fs.ErrNotExist) {
		return exit.Usagef("%s: cannot write: it exists, and may be the only copy of the keys of a cluster; name another directory with --out-dir", secrets)
	}
	for _, m := range b.file.Machines {
		path := b.path(m)
		if path == secrets {
			return exit.Usagef("machine %s: cannot create: the file of its configuration would be %s, which holds the keys; choose another name for the machine", m.Name, secrets)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return exit.Usagef("%s: cannot write: it exists, and can be the configuration of another cluster; name another directory with --out-dir", path)
		}
	}
	return nil
}

// secretsFile is the name of the file with the secrets, in the directory of the build.
const secretsFile = "secrets.yaml"

// configurations generates the secrets, and returns the configuration files of the control-plane
// machines in their order. It also checks the documents of the workers. The files of the workers
// come later, with their tickets.
func (b *builder) configurations() ([]secretfile.File, error) {
	endpoint, err := b.file.Endpoint()
	if err != nil {
		return nil, exit.Usagef("%w", err)
	}
	if b.secrets, err = gen.NewSecrets(); err != nil {
		return nil, err
	}
	var files []secretfile.File
	for _, m := range b.file.Role(config.RoleControlPlane) {
		base, err := gen.Config{Name: m.Name, Cluster: b.file.Cluster.Name(), Endpoint: endpoint, Secrets: b.secrets}.Documents()
		if err != nil {
			return nil, err
		}
		text, err := b.documents(m, base)
		if err != nil {
			return nil, err
		}
		files = append(files, secretfile.File{Path: b.path(m), Content: text})
	}
	for _, m := range b.file.Role(config.RoleWorker) {
		if _, err := b.documents(m, config.Marshal(config.New(m.Name, config.RoleWorker))); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// documents returns the configuration of a machine (clusterfile.File.Documents).
func (b *builder) documents(m clusterfile.Machine, base []byte) ([]byte, error) {
	text, err := b.file.Documents(m, base)
	if err != nil {
		return nil, exit.Usagef("machine %s: the file gives no valid configuration: %w", m.Name, err)
	}
	return text, nil
}

func (b *builder) path(m clusterfile.Machine) string { return filepath.Join(b.dir, m.Name+".yaml") }

// checkMachines checks that each machine answers and has no configuration.
func (b *builder) checkMachines(ctx context.Context) error {
	for _, m := range b.file.Machines {
		pinned, err := b.pinned(m)
		if err != nil {
			return err
		}
		version, err := firstAnswer(ctx, pinned)
		if err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
		if version.Machine != "" {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("machine %s: cannot configure: the machine at %s has a configuration already, as %s", m.Name, pinned.Address, version.Machine), Hint: "reset it first (`orlopctl reset --wipe all`), if its data are not needed"}
		}
	}
	return nil
}

// answerTimeout bounds the wait for a machine that still boots.
const answerTimeout = 2 * time.Minute

// firstAnswer waits until a machine answers, and returns its versions.
func firstAnswer(ctx context.Context, e client.Endpoint) (version *api.VersionResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for {
		err = connect.Attempt(ctx, e, func(ctx context.Context, c *client.Client) error {
			version, err = c.Machine.Version(ctx, &api.VersionRequest{})
			return err
		})
		if err == nil || !exit.IsTemporary(err) || backoff.Sleep(ctx, connect.DialInterval) != nil {
			return version, err
		}
	}
}

// pinned returns the endpoint of a machine without a configuration. The fingerprint verifies the
// machine, because the machine has no certificate of the cluster yet.
func (b *builder) pinned(m clusterfile.Machine) (client.Endpoint, error) {
	return contexts.Context{Endpoint: endpointOf(m), Fingerprint: m.Fingerprint, Cert: b.admin.Cert, Key: b.admin.Key}.Client()
}

// endpointOf returns the address by which the tool calls a machine.
func endpointOf(m clusterfile.Machine) string {
	if m.Endpoint != "" {
		return m.Endpoint
	}
	return m.Address
}

// known returns the context of a machine with a configuration. The CA of the cluster verifies the
// machine.
func (b *builder) known(m clusterfile.Machine) contexts.Context {
	c := contexts.Context{Endpoint: endpointOf(m), CA: b.secrets.Machine.Cert, Cert: b.admin.Cert, Key: b.admin.Key, Operator: b.admin.Operator}
	if isElsewhere(m) {
		c.ServerName = m.Name
	}
	return c
}

// isElsewhere reports whether the tool reaches a machine at another host than its address. The
// certificate of the machine does not contain this host, so the tool checks the name of the
// machine.
func isElsewhere(m clusterfile.Machine) bool {
	host, _, err := net.SplitHostPort(m.Endpoint)
	return m.Endpoint != "" && (err != nil || host != m.Address)
}

// store writes the secrets and the configurations to files. It runs before any machine gets its
// configuration.
func (b *builder) store(files []secretfile.File) error {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return fmt.Errorf("--out-dir: cannot create the directory: %w", err)
	}
	if err := b.secrets.Write(filepath.Join(b.dir, secretsFile), false); err != nil {
		return err
	}
	if err := secretfile.WriteAll(files, false); err != nil {
		return err
	}
	b.ios.PrintProgress("wrote " + filepath.Join(b.dir, secretsFile) + ": protect it, it gives full control of the cluster")
	return nil
}

// controlPlane configures the control-plane machines, and waits until they are healthy.
func (b *builder) controlPlane(ctx context.Context, files []secretfile.File) error {
	planes := b.file.Role(config.RoleControlPlane)
	for i, m := range planes {
		if err := b.apply(ctx, m, files[i].Content); err != nil {
			return err
		}
	}
	for _, m := range planes {
		if err := b.await(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// apply applies a configuration to a machine.
func (b *builder) apply(ctx context.Context, m clusterfile.Machine, documents []byte) error {
	pinned, err := b.pinned(m)
	if err != nil {
		return err
	}
	applying, cancel := context.WithTimeout(ctx, connect.ApplyTimeout)
	defer cancel()
	err = connect.Do(applying, pinned, func(c *client.Client) error {
		_, err := c.Config.Apply(applying, &api.ApplyRequest{Documents: documents, Filename: m.Name + ".yaml"})
		return err
	})
	if err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	b.ios.PrintProgress(m.Name + ": configuration applied")
	return nil
}

// await waits until a machine is healthy.
func (b *builder) await(ctx context.Context, m clusterfile.Machine) error {
	pinned, err := b.pinned(m)
	if err != nil {
		return err
	}
	if err := health.Wait(ctx, pinned, false, func(health.Report) error { return nil }); err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	b.ios.PrintProgress(m.Name + ": healthy")
	return nil
}

// worker creates a ticket for a worker, applies the configuration with the ticket, and waits until
// the worker is healthy.
func (b *builder) worker(ctx context.Context, m clusterfile.Machine) error {
	host, err := b.known(b.file.Role(config.RoleControlPlane)[0]).Client()
	if err != nil {
		return err
	}
	ticket, request, err := gen.NewRequest()
	if err != nil {
		return err
	}
	var base []byte
	err = connect.Do(ctx, host, func(c *client.Client) error {
		base, err = gen.WorkerConfig(ctx, c, &api.CreateTicketRequest{Name: m.Name, Csr: request}, ticket, config.Node{})
		return err
	})
	if err != nil {
		return fmt.Errorf("machine %s: cannot get a ticket: %w", m.Name, err)
	}
	text, err := b.documents(m, base)
	if err != nil {
		return err
	}
	if err := secretfile.Write(b.path(m), text, false); err != nil {
		return err
	}
	if err := b.apply(ctx, m, text); err != nil {
		return err
	}
	return b.await(ctx, m)
}

// explain adds the next step to an error that occurs after the files were written.
func (b *builder) explain(err error) error {
	code, _ := exit.Code(err)
	return &exit.Error{
		Code: code, Err: fmt.Errorf("cluster %s: cannot create: %s", b.name, exit.Message(err)),
		Hint: "the keys and the configurations are in " + b.dir + ": apply them to the other machines (`orlopctl apply-config`), or reset the machines and begin again",
	}
}

// finish stores the context of the cluster and makes it the current context.
func (b *builder) finish() error {
	planes := b.file.Role(config.RoleControlPlane)
	stored := b.known(planes[0])
	for _, m := range planes[1:] {
		// A server name is the name of a single machine, so a context with a server name has no
		// fallback. The certificate of a fallback must contain its host.
		if stored.ServerName == "" && !isElsewhere(m) {
			stored.Fallback = append(stored.Fallback, endpointOf(m))
		}
	}
	err := contexts.Change(func(f *contexts.File) error {
		f.Contexts[b.name], f.Current = stored, b.name
		return nil
	})
	if err != nil {
		return err
	}
	b.ios.PrintProgress("the cluster " + b.file.Cluster.Name() + " is up; its context is " + b.name + ". `orlopctl kubeconfig` gets access to Kubernetes")
	return nil
}

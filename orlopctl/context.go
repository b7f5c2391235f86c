package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// contextsFile is the file ~/.orlop/config of this tool. It holds the known machines with the key
// for each. Mode 0600.
type contextsFile struct {
	Current  string                    `json:"current,omitempty"`
	Contexts map[string]machineContext `json:"contexts,omitempty"`
}

// machineContext holds the address and the credentials of one machine. Certificates and keys are
// PEM.
type machineContext struct {
	Endpoint string `json:"endpoint"` // host[:port]
	// Fallback are other machines of the same cluster. The tool tries them in order if the previous
	// machines do not admit the caller.
	Fallback []string `json:"fallback,omitempty"`
	// name that the machine's certificate must hold
	ServerName  string `json:"serverName,omitempty"`
	CA          string `json:"ca,omitempty"`          // the cluster's machine CA
	Fingerprint string `json:"fingerprint,omitempty"` // alternative to the CA
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	// Operator is the directory of the operator CA that can sign Cert again if its key is there;
	// empty if unknown.
	Operator string `json:"operator,omitempty"`
	// RenewAfter is the time from which Cert is renewed; zero if no machine issued it.
	RenewAfter time.Time `json:"renewAfter,omitzero"`
}

// contextsPath returns the path of the file: $ORLOP_CONFIG or ~/.orlop/config.
func contextsPath() (string, error) {
	if path := os.Getenv("ORLOP_CONFIG"); path != "" {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("contexts: cannot find your home directory: %w; set ORLOP_CONFIG to a file", err)
	}
	return filepath.Join(home, ".orlop", "config"), nil
}

func loadContexts() (*contextsFile, error) {
	path, err := contextsPath()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &contextsFile{Contexts: map[string]machineContext{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("contexts: cannot read: %w", err)
	}
	file := &contextsFile{}
	if err := yaml.UnmarshalStrict(text, file); err != nil {
		return nil, exit.Usagef("contexts: cannot use %s: %w", path, err)
	}
	if file.Contexts == nil {
		file.Contexts = map[string]machineContext{}
	}
	return file, nil
}

func (f *contextsFile) save() error {
	path, err := contextsPath()
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return fmt.Errorf("contexts: cannot format: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("contexts: cannot create the directory: %w", err)
	}
	return secretfile.Write(path, text, true)
}

// withContext returns a connector with the same flags, but for another context.
func (conn *connector) withContext(name string, ios *iostreams.Streams) *connector {
	other := &connector{ios: ios, flags: conn.flags}
	other.flags.context = name
	return other
}

// machine returns the machine that the flags and the contexts select.
func (conn *connector) machine() (client.Endpoint, error) {
	_, _, e, err := conn.called()
	return e, err
}

// called is machine, and also returns the context of the machine.
func (conn *connector) called() (name string, chosen machineContext, e client.Endpoint, err error) {
	if conn.relay != nil {
		return "", machineContext{}, conn.relay.endpointOf(conn.node), nil
	}
	if name, chosen, err = conn.chosen(); err != nil {
		return name, chosen, e, err
	}
	chosen = conn.signedAgain(name, chosen)
	e, err = chosen.endpoint()
	if conn.stay == nil {
		conn.stay = new(client.ConnPool)
	}
	e.Pool = conn.stay
	return name, chosen, e, err
}

// chosen returns the current context with its name, overlaid by the flags.
func (conn *connector) chosen() (string, machineContext, error) {
	file, err := loadContexts()
	if err != nil {
		return "", machineContext{}, err
	}
	name := conn.flags.context
	if name == "" {
		name = file.Current
	}
	chosen, known := file.Contexts[name]
	if conn.flags.context != "" && !known {
		return "", machineContext{}, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("context %q: cannot use: it does not exist", name), Hint: "`orlopctl config contexts` lists them"}
	}
	chosen, err = conn.overlay(chosen)
	return name, chosen, err
}

// overlay replaces the values of a context by the values of the flags.
func (conn *connector) overlay(c machineContext) (machineContext, error) {
	f := conn.flags
	if len(f.endpoints) > 0 {
		c.Endpoint, c.Fallback = f.endpoints[0], f.endpoints[1:]
	}
	if len(c.Fallback) > 0 {
		c.ServerName = "" // belongs to the previous machine
	}
	if f.serverName != "" {
		c.ServerName = f.serverName
	}
	if f.fingerprint != "" {
		c.Fingerprint, c.CA = f.fingerprint, ""
	}
	for _, file := range []struct {
		flag, path string
		to         *string
	}{{"--cert", f.cert, &c.Cert}, {"--key", f.key, &c.Key}, {"--ca", f.ca, &c.CA}} {
		if file.path == "" {
			continue
		}
		text, err := os.ReadFile(file.path)
		if err != nil {
			return c, exit.Usagef("%s: cannot read: %w", file.flag, err)
		}
		*file.to = string(text)
	}
	if s := new(secrets); f.ca != "" && yaml.UnmarshalStrict([]byte(c.CA), s) == nil {
		c.CA = s.Machine.Cert + s.Next["machine"].Cert
	}
	if f.cert != "" || f.key != "" {
		c.Operator, c.RenewAfter = "", time.Time{} // belong to another certificate
	}
	if f.ca != "" {
		if f.fingerprint != "" {
			return c, exit.Usagef("--ca and --fingerprint: cannot use both: each determines how the machine is verified")
		}
		c.Fingerprint = ""
	}
	return c, nil
}

// endpoint converts a context into the client's endpoint, or returns an error with a sentence for
// each missing value.
func (c machineContext) endpoint() (client.Endpoint, error) {
	missing := func(what, hint string) (client.Endpoint, error) {
		return client.Endpoint{}, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("machine: cannot connect: %s", what), Hint: hint}
	}
	switch {
	case c.Endpoint == "":
		return missing("there is no endpoint and no current context", "pass --endpoint, or store a context with `orlopctl config set NAME`")
	case c.Cert == "" || c.Key == "":
		return missing("there is no client certificate", "pass --cert and --key; `orlopctl gen operator` makes them")
	case c.CA == "" && c.Fingerprint == "":
		return missing("there is no CA or fingerprint to verify the machine", "pass --ca (the cluster's machine CA), or --fingerprint from the machine's console")
	}
	if len(c.Fallback) > 0 && (c.CA == "" || c.ServerName != "") {
		return missing("there are several endpoints, but the fingerprint or the name of only one machine", "pass --ca (the cluster's machine CA), and no --server-name; the certificate of each machine holds its own address")
	}
	leaf, err := pki.ParseLeaf([]byte(c.Cert), []byte(c.Key))
	if err != nil {
		return client.Endpoint{}, &exit.Error{Code: exit.Usage, Err: err, Hint: "check --cert and --key"}
	}
	e := client.Endpoint{
		Address: c.Endpoint, Fallback: c.Fallback, ServerName: c.ServerName, Fingerprint: c.Fingerprint,
		Cert: tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key, Leaf: leaf.Cert},
	}
	if c.Fingerprint != "" {
		if _, err := pki.ParseFingerprint(c.Fingerprint); err != nil {
			return client.Endpoint{}, &exit.Error{Code: exit.Usage, Err: err}
		}
		return e, nil
	}
	cas, err := pki.ParseCerts([]byte(c.CA))
	if err != nil {
		return client.Endpoint{}, &exit.Error{Code: exit.Usage, Err: err, Hint: "check --ca"}
	}
	e.CA = x509.NewCertPool()
	for _, ca := range cas {
		e.CA.AddCert(ca)
	}
	return e, nil
}

func configCommand(ios *iostreams.Streams, conn *connector) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "The machines that this tool knows (~/.orlop/config, or $ORLOP_CONFIG)"}
	c.AddCommand(
		&cobra.Command{
			Use: "contexts", Short: "List the contexts", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return listContexts(ios) },
		},
		&cobra.Command{
			Use: "use-context NAME", Short: "Select the current context", Args: cobra.ExactArgs(1),
			ValidArgsFunction: completeContexts,
			RunE: func(_ *cobra.Command, args []string) error {
				return changeContexts(func(f *contextsFile) error {
					if _, known := f.Contexts[args[0]]; !known {
						return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("context %q: cannot use: it does not exist", args[0]), Hint: "`orlopctl config contexts` lists them"}
					}
					f.Current = args[0]
					return nil
				})
			},
		},
		&cobra.Command{
			Use: "set NAME", Short: "Store a context from --endpoint, --server-name, --cert, --key and --ca or --fingerprint, and make it the current context", Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				return changeContexts(func(f *contextsFile) error {
					c, err := conn.overlay(f.Contexts[args[0]])
					if err != nil {
						return err
					}
					if _, err := c.endpoint(); err != nil {
						return err
					}
					f.Contexts[args[0]], f.Current = c, args[0]
					return nil
				})
			},
		},
		&cobra.Command{
			Use: "delete-context NAME", Short: "Forget a context", Args: cobra.ExactArgs(1),
			ValidArgsFunction: completeContexts,
			RunE: func(_ *cobra.Command, args []string) error {
				return changeContexts(func(f *contextsFile) error { f.forget(args[0]); return nil })
			},
		},
	)
	return c
}

func (f *contextsFile) forget(name string) {
	delete(f.Contexts, name)
	if f.Current == name {
		f.Current = ""
	}
}

// lockTimeout bounds the wait for another orlopctl that changes the contexts. Such a change only
// reads and writes a small file.
const lockTimeout = 10 * time.Second

// changeContexts reads the contexts, changes them and writes them back. A lock excludes other
// processes meanwhile; without it, concurrent changes would overwrite each other.
func changeContexts(change func(*contextsFile) error) error {
	unlock, err := lockContexts()
	if err != nil {
		return err
	}
	defer unlock()
	file, err := loadContexts()
	if err != nil {
		return err
	}
	if err := change(file); err != nil {
		return err
	}
	return file.save()
}

// lockContexts locks a file beside the file of contexts, because each change replaces the file of
// contexts itself. The kernel releases the lock when the process ends, for any reason.
func lockContexts() (unlock func(), err error) {
	path, err := contextsPath()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("contexts: cannot create the directory: %w", err)
	}
	path += ".lock"
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("contexts: cannot lock: %w", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(file.Fd()), unix.LOCK_EX) }()
	select {
	case err = <-locked:
	// The file stays open because the goroutine still waits for the lock; this process ends soon.
	case <-time.After(lockTimeout):
		return nil, &exit.Error{Code: exit.Failure, Err: fmt.Errorf("contexts: cannot lock %s: another orlopctl holds it since %s", path, lockTimeout), Hint: "wait for the other orlopctl or end it, and retry"}
	}
	if err != nil {
		_ = file.Close() // nothing was written to it
		return nil, fmt.Errorf("contexts: cannot lock %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil // releases the lock
}

// listedContext is a context as `config contexts` prints it.
type listedContext struct {
	Name       string     `json:"name"`
	Current    bool       `json:"current"`
	Endpoints  []string   `json:"endpoints"`
	ServerName string     `json:"serverName,omitempty"`
	Subject    string     `json:"subject,omitempty"` // of the certificate, like Expires
	Expires    *time.Time `json:"expires,omitempty"`
}

func listContexts(ios *iostreams.Streams) error {
	file, err := loadContexts()
	if err != nil {
		return err
	}
	all := []listedContext{}
	for _, name := range file.names() {
		c := file.Contexts[name]
		shown := listedContext{Name: name, Current: name == file.Current, Endpoints: append([]string{c.Endpoint}, c.Fallback...), ServerName: c.ServerName}
		if cert, err := pki.ParseCert([]byte(c.Cert)); err == nil {
			shown.Subject, shown.Expires = cert.Subject.CommonName, &cert.NotAfter
		}
		all = append(all, shown)
	}
	if !ios.Human() {
		return ios.PrintPlain(all)
	}
	return iostreams.DrawTable(ios.Out, func(w *tabwriter.Writer) {
		iostreams.Row(w, "CURRENT", "NAME", "ENDPOINT", "MACHINE", "CERTIFICATE", "EXPIRES")
		for _, c := range all {
			mark, expires := "-", "-"
			if c.Current {
				mark = "*"
			}
			if c.Expires != nil {
				expires = c.Expires.Format("2006-01-02")
			}
			iostreams.Row(w, mark, c.Name, strings.Join(c.Endpoints, ","), format.OrDash(c.ServerName), format.OrDash(c.Subject), expires)
		}
	})
}

func (f *contextsFile) names() []string {
	var names []string
	for name := range f.Contexts {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	file, err := loadContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return file.names(), cobra.ShellCompDirectiveNoFileComp
}

package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

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
func (conn *connector) called() (name string, chosen contexts.Context, e client.Endpoint, err error) {
	if conn.relay != nil {
		return "", contexts.Context{}, conn.relay.endpointOf(conn.node), nil
	}
	if name, chosen, err = conn.chosen(); err != nil {
		return name, chosen, e, err
	}
	chosen = conn.signedAgain(name, chosen)
	e, err = chosen.Client()
	if conn.stay == nil {
		conn.stay = new(client.ConnPool)
	}
	e.Pool = conn.stay
	return name, chosen, e, err
}

// chosen returns the current context with its name, overlaid by the flags.
func (conn *connector) chosen() (string, contexts.Context, error) {
	file, err := contexts.Load()
	if err != nil {
		return "", contexts.Context{}, err
	}
	name := conn.flags.context
	if name == "" {
		name = file.Current
	}
	chosen, known := file.Contexts[name]
	if conn.flags.context != "" && !known {
		return "", contexts.Context{}, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("context %q: cannot use: it does not exist", name), Hint: "`orlopctl config contexts` lists them"}
	}
	chosen, err = conn.overlay(chosen)
	return name, chosen, err
}

// overlay replaces the values of a context by the values of the flags.
func (conn *connector) overlay(c contexts.Context) (contexts.Context, error) {
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
	if s := new(gen.Secrets); f.ca != "" && yaml.UnmarshalStrict([]byte(c.CA), s) == nil {
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
				return contexts.Change(func(f *contexts.File) error {
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
				return contexts.Change(func(f *contexts.File) error {
					c, err := conn.overlay(f.Contexts[args[0]])
					if err != nil {
						return err
					}
					if _, err := c.Client(); err != nil {
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
				return contexts.Change(func(f *contexts.File) error { f.Forget(args[0]); return nil })
			},
		},
	)
	return c
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
	file, err := contexts.Load()
	if err != nil {
		return err
	}
	all := []listedContext{}
	for _, name := range file.Names() {
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

func completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	file, err := contexts.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return file.Names(), cobra.ShellCompDirectiveNoFileComp
}

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/pki"
)

func configCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Manage contexts: stored addresses and credentials of machines (~/.orlop/config, or $ORLOP_CONFIG)"}
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
					c, err := conn.Overlay(f.Contexts[args[0]])
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
			Use: "delete-context NAME", Short: "Delete a context", Args: cobra.ExactArgs(1),
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
	Name       string   `json:"name"`
	Current    bool     `json:"current"`
	Endpoints  []string `json:"endpoints"`
	ServerName string   `json:"serverName,omitempty"`
	// Subject and Expires describe the client certificate.
	Subject string     `json:"subject,omitempty"`
	Expires *time.Time `json:"expires,omitempty"`
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

package main

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/pki"
)

func genCommand(ios *iostreams.Streams) *cobra.Command {
	c := &cobra.Command{Use: "gen", Short: "Generate keys and configurations"}
	c.AddCommand(genOperatorCommand(ios), genClientCommand(ios), genSecretsCommand(ios), genConfigCommand(ios))
	return c
}

func genOperatorCommand(ios *iostreams.Streams) *cobra.Command {
	var name, out string
	var force bool
	c := &cobra.Command{
		Use:   "operator",
		Short: "Make an operator's CA and the first client certificate (ca.crt, ca.key, admin.crt, admin.key)",
		Long: "Make an operator's CA and the first client certificate, with the role admin.\n\n" +
			"A machine whose image is built with ca.crt accepts only calls of this operator. Store ca.key offline: only\n`orlopctl gen client` needs it, to make more client certificates. The first certificate is valid for 24 hours;\nmachines with a configuration renew it (`orlopctl trust`).",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := gen.MakeOperator(out, name, force); err != nil {
				return err
			}
			ios.Println("wrote the operator's CA and the certificate of " + gen.AdminName + " to " + out)
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "operator", "directory for the files")
	c.Flags().StringVar(&name, "name", "orlop operator", "name of the CA")
	c.Flags().BoolVar(&force, "force", false, "replace existing files")
	return c
}

func genClientCommand(ios *iostreams.Streams) *cobra.Command {
	var operator, name, role, out string
	var ttl time.Duration
	var force bool
	c := &cobra.Command{
		Use:   "client",
		Short: "Make another client certificate, signed by the operator's CA",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if !slices.Contains(pki.Roles(), role) {
				return exit.Usagef("--role %s: cannot use: expected %s", role, gen.RoleNames())
			}
			if name == "" {
				return exit.Usagef("--name: cannot make a certificate: expected the name of the client")
			}
			if name == "ca" || filepath.Base(name) != name || name == ".." {
				return exit.Usagef("--name %s: cannot make a certificate: expected a name for the files NAME.crt and NAME.key, but not ca, whose key would be overwritten", name)
			}
			ca, err := gen.ReadOperator(operator)
			if err != nil {
				return err
			}
			if out == "" {
				out = operator
			}
			if err := gen.MakeClient(ca, out, name, pki.RolePrefix+role, ttl, force); err != nil {
				return err
			}
			ios.Printf("wrote %s.crt and %s.key to %s\n", name, name, out)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&operator, "operator", "", "directory with the operator's ca.crt and ca.key")
	f.StringVar(&name, "name", "", "name of the client, which the audit log shows")
	f.StringVar(&role, "role", "reader", "role of the client: "+gen.RoleNames())
	f.StringVar(&out, "out", "", "directory for the files (default: the directory of --operator)")
	f.DurationVar(&ttl, "ttl", gen.ClientTTL, "how long the certificate is valid")
	flags.Positive(f, "ttl", &ttl)
	f.BoolVar(&force, "force", false, "replace existing files")
	must(c.MarkFlagRequired("operator"))
	return c
}

// must panics on an error that only a bug in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func genSecretsCommand(ios *iostreams.Streams) *cobra.Command {
	var out string
	var force, clientOnly bool
	c := &cobra.Command{
		Use:   "secrets",
		Short: "Make a cluster's CAs and keys (secrets.yaml)",
		Long: "Make a cluster's CAs and keys. The file gives full control of the cluster: protect it accordingly.\n\n" +
			"With --client-ca, the command changes an existing file. It replaces only the client CA: the CA with which machines issue client\n" +
			"certificates. A machine whose configuration has the new client CA rejects all client certificates that were issued before.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var s *gen.Secrets
			var err error
			if clientOnly {
				if s, err = gen.ReadSecrets(out); err == nil {
					err = s.NewClientCA()
				}
			} else {
				s, err = gen.NewSecrets()
			}
			if err != nil {
				return err
			}
			if err := s.Write(out, force || clientOnly); err != nil {
				return err
			}
			ios.Println("wrote " + out)
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "secrets.yaml", "file to write")
	c.Flags().BoolVar(&force, "force", false, "replace an existing file")
	c.Flags().BoolVar(&clientOnly, "client-ca", false, "replace only the client CA of an existing file")
	return c
}

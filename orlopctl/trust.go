package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/rotation"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

func trustCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{
		Use:   "trust",
		Short: "Issue, renew, list and revoke client certificates",
		Long: "Issue, renew, list and revoke client certificates.\n\n" +
			"Certificates that a machine issues are valid for 24 hours by default. In the last third of this time, any command that makes a\n" +
			"single call (get, version, apply-config and similar commands) renews the certificate of the context automatically. After a\n" +
			"certificate has expired, an operator must issue another certificate.",
	}
	rotateCA, rotateKey := rotation.CACommand(ios, conn), rotation.KeyCommand(ios, conn)
	rotateCA.Annotations, rotateKey.Annotations = fanout(api.Fanout_FANOUT_FLEET), fanout(api.Fanout_FANOUT_FLEET)
	c.AddCommand(trustIssueCommand(ios, conn), trustRenewCommand(ios, conn), trustListCommand(ios, conn), trustRevokeCommand(ios, conn), rotateCA, rotateKey)
	return c
}

func trustIssueCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var name, role, out string
	var ttl time.Duration
	var force bool
	c := &cobra.Command{
		Use:     "issue",
		Short:   "Make the machine issue a client certificate (NAME.crt, NAME.key)",
		Long:    "Make the machine issue a client certificate (NAME.crt, NAME.key). This computer makes the key, and does not send it to the machine.",
		Example: "  orlopctl trust issue --name dora --role reader --out dora",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			key, request, err := gen.NewRequest()
			if err != nil {
				return err
			}
			keyFile, certFile := filepath.Join(out, name+".key"), filepath.Join(out, name+".crt")
			for _, file := range []string{keyFile, certFile} {
				if err := vacant(file, force); err != nil {
					return err
				}
			}
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Trust.Issue(ctx, &api.IssueRequest{Name: name, Role: role, Csr: request, Ttl: connect.DurationOf(ttl)})
				if err != nil {
					return err
				}
				cert, err := x509.ParseCertificate(answer.Certificate)
				if err != nil {
					return fmt.Errorf("certificate: cannot parse the certificate from the machine: %w", err)
				}
				key.Cert = cert
				if err := os.MkdirAll(out, 0o700); err != nil {
					return fmt.Errorf("directory: cannot create: %w", err)
				}
				if err := gen.WritePair(certFile, keyFile, key); err != nil {
					return err
				}
				ios.Printf("wrote %s and %s: serial %s, valid until %s\n", certFile, keyFile, pki.Serial(cert), cert.NotAfter.Format(time.RFC3339))
				return nil
			})
		},
	}
	f := c.Flags()
	f.StringVar(&name, "name", "", "name of the client, which the audit log shows")
	f.StringVar(&role, "role", "reader", "role of the client: "+gen.RoleNames())
	f.StringVar(&out, "out", ".", "directory for the files")
	f.DurationVar(&ttl, "ttl", 0, "validity of the certificate (default: 24h; at most 720h)")
	flags.Positive(f, "ttl", &ttl)
	f.BoolVar(&force, "force", false, "replace existing files")
	must(c.MarkFlagRequired("name"))
	return c
}

func trustRenewCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var ttl time.Duration
	c := &cobra.Command{
		Use:   "renew",
		Short: "Make the machine renew your own certificate",
		Long: "Make the machine renew your own certificate, with a new key: the certificate of the context, or the files of\n" +
			"--cert and --key. The old certificate stays valid until it expires.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if (conn.Flags.Cert == "") != (conn.Flags.Key == "") || conn.Flags.Cert == "" && !conn.UsesContextCert() {
				return exit.Usagef("trust renew: cannot renew: expected a context, or both --cert and --key")
			}
			name, chosen, err := conn.Chosen()
			if err != nil {
				return err
			}
			present, err := pki.ParseLeaf([]byte(chosen.Cert), []byte(chosen.Key))
			if err != nil {
				return err
			}
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				leaf, err := connect.Renew(ctx, c, present, ttl)
				if err != nil {
					return err
				}
				if conn.Flags.Cert != "" {
					err = gen.WritePair(conn.Flags.Cert, conn.Flags.Key, leaf)
				} else {
					err = connect.StoreRenewed(name, chosen, leaf)
				}
				if err != nil {
					return err
				}
				ios.Printf("renewed: serial %s, valid until %s\n", pki.Serial(leaf.Cert), leaf.Cert.NotAfter.Format(time.RFC3339))
				return nil
			})
		},
	}
	c.Flags().DurationVar(&ttl, "ttl", 0, "validity of the new certificate (default: 24h, or less if the present certificate is valid for less)")
	flags.Positive(c.Flags(), "ttl", &ttl)
	return c
}

func trustListCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:         "list",
		Annotations: calls(api.Trust_ListCertificates_FullMethodName),
		Short:       "List the certificates that the machine has issued, and the revocations",
		Args:        cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Trust.ListCertificates(ctx, &api.ListCertificatesRequest{})
				if err != nil {
					return err
				}
				return ios.Print(answer, func(w *tabwriter.Writer) { trustTable(w, answer, time.Now()) })
			})
		},
	}
}

func trustTable(w *tabwriter.Writer, list *api.ListCertificatesResponse, now time.Time) {
	_, _ = fmt.Fprintln(w, "NAME\tROLE\tSERIAL\tISSUED\tEXPIRES\tBY\tSTATE")
	for _, i := range list.Issued {
		state := "valid"
		if !now.Before(i.Expires.AsTime()) {
			state = "expired"
		}
		if i.Lineage != i.Serial {
			state += ", renewed from " + i.Lineage
		}
		for _, r := range list.Revoked {
			if r.Lineage == i.Lineage || r.Name == i.Name {
				state = "revoked"
			}
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.Role, i.Serial, i.At.AsTime().Format(time.RFC3339), i.Expires.AsTime().Format(time.RFC3339), format.Clean(i.By), state)
	}
	for _, r := range list.Revoked {
		_, _ = fmt.Fprintf(w, "revoked at %s by %s: %s\n", r.At.AsTime().Format(time.RFC3339), format.Clean(r.By), revoked(r))
	}
}

func trustRevokeCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	r := &api.RevokeRequest{}
	var file string
	c := &cobra.Command{
		Use:         "revoke",
		Annotations: calls(api.Trust_Revoke_FullMethodName),
		Short:       "Revoke a certificate, or all certificates with a name",
		Long: "Revoke a certificate, or all certificates with a name. A machine or an operator CA can have issued them. The\n" +
			"revocation takes effect immediately, ends running calls, and survives restarts and upgrades. With --serial or\n" +
			"--certificate, the command revokes the whole lineage of the certificate: the first certificate and all its\n" +
			"renewals. With --name, it revokes all certificates with that name. It does not revoke certificates that the\n" +
			"holder has issued for others; the column BY of `orlopctl trust list` shows the issuer. You cannot revoke your own\n" +
			"certificate.\n\n" +
			"The command calls all endpoints of the context, or the machines of --nodes, concurrently. It reports each\n" +
			"machine that it could not reach, and its exit status is that of the first such machine. Machines also sync\n" +
			"revocations from the machines in Cluster.spec.controlPlanes.",
		Example: "  orlopctl trust revoke --name dora\n  orlopctl trust revoke --certificate dora.crt",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if file != "" && r.Serial == "" {
				text, err := os.ReadFile(file)
				if err != nil {
					return exit.Usagef("--certificate: cannot read: %w", err)
				}
				cert, err := pki.ParseCert(text)
				if err != nil {
					return exit.Usagef("--certificate: %w", err)
				}
				r.Serial, _ = pki.LineageOf(cert)
			}
			if (r.Serial == "") == (r.Name == "") {
				return exit.Usagef("revocation: cannot revoke: expected --serial, --certificate or --name")
			}
			return revoke(ios, conn, r)
		},
	}
	f := c.Flags()
	f.StringVar(&r.Serial, "serial", "", "serial number of the certificate")
	f.StringVar(&file, "certificate", "", "file with the certificate, instead of its serial number")
	f.StringVar(&r.Name, "name", "", "revoke all certificates with this common name")
	f.BoolVar(&r.Restore, "restore", false, "undo the revocation of --name")
	f.BoolVar(&r.NewList, "new-list", false, "start a new list of revocations if the machine cannot read its list: earlier revocations are lost")
	return c
}

// revoke sends a revocation, or the restoration of a name, to all machines of the context
// concurrently. An unreachable machine does not delay the others. The error lists the machines that
// failed.
func revoke(ios *iostreams.Streams, conn *connect.Connector, r *api.RevokeRequest) error {
	ctx, stop := connect.Interruptible()
	defer stop()
	f, err := conn.Fleet()
	if err != nil {
		return err
	}
	defer f.Close()
	answers := make([]*api.RevokeResponse, len(f.Names))
	ask := func(ctx context.Context, i int, c *client.Client) (err error) {
		answers[i], err = c.Trust.Revoke(ctx, r)
		return err
	}
	errs := f.All(ctx, ask)
	// Only a machine that issued a certificate of the lineage can name the first certificate of the
	// lineage. If a machine names it, the command calls all machines a second time, with the serial
	// number of this first certificate.
	if i := slices.IndexFunc(answers, func(a *api.RevokeResponse) bool { return a.GetIssuedHere() && a.Revocation.Lineage != r.Serial }); i >= 0 && r.Serial != "" {
		r.Serial = answers[i].Revocation.Lineage
		errs = f.All(ctx, ask)
	}
	// issued is true if a called machine issued the certificate. A revocation by name needs no
	// issuer.
	issued := r.Serial == ""
	for i, answer := range answers {
		if answer == nil {
			continue
		}
		issued = issued || answer.IssuedHere
		named := ios
		if len(f.Names) > 1 || f.Relayed {
			named = ios.ForNode(f.Names[i])
		}
		if err := printRevoked(named, r, answer); err != nil {
			return err
		}
	}
	if !issued && ios.Human() && slices.ContainsFunc(answers, func(a *api.RevokeResponse) bool { return a != nil }) {
		ios.Errorln("none of the called machines has issued it. If the number is not the complete serial number of the lineage's first certificate, the lineage's other certificates stay valid")
	}
	return f.Failed(ios, errs, "call it again when they answer")
}

func printRevoked(ios *iostreams.Streams, r *api.RevokeRequest, answer *api.RevokeResponse) error {
	prefix := ""
	if ios.Node != "" {
		prefix = ios.Node + ": "
	}
	switch {
	case !ios.Human():
		return ios.Print(answer, nil)
	case r.Restore:
		ios.Printf("%sname %s is restored\n", prefix, r.Name)
	default:
		ios.Printf("%srevoked: %s\n", prefix, revoked(answer.Revocation))
	}
	return nil
}

func revoked(r *api.Revocation) string {
	if r.Name != "" {
		return "every certificate of " + r.Name
	}
	return "certificate " + r.Lineage + " and its renewals"
}

package rotation

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// replaceOwnCertificate replaces the caller's certificate if it depends on the old client CA. It
// returns an error if other clients still depend on the old client CA.
func (r *caRotation) replaceOwnCertificate(ctx context.Context) error {
	if r.ca.field != "client" {
		return nil
	}
	name, chosen, _, err := r.conn.Called()
	if err != nil {
		return err
	}
	own, err := pki.ParseLeaf([]byte(chosen.Cert), []byte(chosen.Key))
	if err != nil {
		return err
	}
	old := r.all[slices.IndexFunc(r.all, func(h holding) bool { return len(h.accepted) > 0 })].accepted
	_, root := pki.LineageOf(own.Cert)
	signed := slices.ContainsFunc(old, func(c *x509.Certificate) bool { return own.Cert.CheckSignatureFrom(c) == nil })
	rooted := root == "" && signed || slices.ContainsFunc(old, func(c *x509.Certificate) bool { return pki.Fingerprint(c) == root })
	if !signed && !rooted {
		return r.checkOtherClients(ctx, own.Cert.Subject.CommonName)
	}
	var made *pki.Leaf
	err = r.fleet.Call(ctx, 0, func(ctx context.Context, c *client.Client) error {
		if !rooted { // an operator CA issued the first certificate of the lineage
			made, err = connect.Renew(ctx, c, own, 0)
			return err
		}
		leaf, request, err := gen.NewRequest()
		if err != nil {
			return err
		}
		role := strings.TrimPrefix(strings.Join(own.Cert.Subject.Organization, ","), pki.RolePrefix)
		answer, err := c.Trust.Issue(ctx, &api.IssueRequest{Name: own.Cert.Subject.CommonName, Role: role, Csr: request})
		if err != nil {
			return err
		}
		if leaf.Cert, err = x509.ParseCertificate(answer.Certificate); err != nil {
			return fmt.Errorf("certificate: cannot use the certificate from the machine: %w", err)
		}
		made = leaf
		return nil
	})
	if err != nil {
		return fmt.Errorf("your own certificate: %w", err)
	}
	if r.conn.Flags.Cert != "" {
		err = gen.WritePair(r.conn.Flags.Cert, r.conn.Flags.Key, made)
	} else {
		err = connect.StoreRenewed(name, chosen, made)
	}
	if err != nil {
		return err
	}
	r.fleet.Close()
	r.ios.Printf("your own certificate is now issued by the new CA, valid until %s\n", made.Cert.NotAfter.Format(time.RFC3339))
	return r.checkOtherClients(ctx, own.Cert.Subject.CommonName)
}

// checkOtherClients returns an error if another client has only certificates of the old client CA.
// own is the name of the caller.
func (r *caRotation) checkOtherClients(ctx context.Context, own string) error {
	clients := otherClients{current: map[string]bool{own: true}, old: map[string]bool{}}
	for i := range r.fleet.Names {
		since, err := r.since(ctx, i)
		if err != nil {
			return err
		}
		err = r.fleet.Call(ctx, i, func(ctx context.Context, c *client.Client) error {
			list, err := c.Trust.ListCertificates(ctx, &api.ListCertificatesRequest{})
			if err != nil {
				return err
			}
			clients.add(list, since, time.Now())
			return nil
		})
		if err != nil {
			return withMachine(r.fleet.Names[i], err)
		}
	}
	left := clients.onlyOld()
	if len(left) == 0 || r.force {
		return nil
	}
	return &exit.Error{
		Code: exit.Failure,
		Err:  fmt.Errorf("the old client CA is not dropped yet: these clients have only certificates by it: %s", strings.Join(left, ", ")),
		Hint: "issue new certificates (`orlopctl trust issue`), or revoke these, and call it again; --force drops it immediately, for example after a theft of the CA",
	}
}

// otherClients has two sets of names of clients: those with a certificate of the current client CA,
// and those with a certificate of the old client CA.
type otherClients struct{ current, old map[string]bool }

// add adds the clients with valid certificates that a machine has issued. since is the time from
// which the machine issues with the current client CA.
func (o otherClients) add(list *api.ListCertificatesResponse, since, now time.Time) {
	begun := map[string]time.Time{} // issue time of the first certificate of each lineage
	for _, e := range list.Issued {
		if e.Serial == e.Lineage {
			begun[e.Lineage] = e.At.AsTime()
		}
	}
	for _, e := range list.Issued {
		first, known := begun[e.Lineage]
		switch {
		case !now.Before(e.Expires.AsTime()), slices.ContainsFunc(list.Revoked, isOf(e)):
		case e.At.AsTime().Before(since), known && first.Before(since):
			o.old[e.Name] = true
		default:
			o.current[e.Name] = true
		}
	}
}

// onlyOld returns the names of the clients that have only certificates of the old client CA.
func (o otherClients) onlyOld() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(o.old)) {
		if !o.current[name] {
			names = append(names, name)
		}
	}
	return names
}

// isOf returns a function that reports whether a revocation applies to certificate e.
func isOf(e *api.IssuedCertificate) func(*api.Revocation) bool {
	return func(r *api.Revocation) bool { return r.Name == e.Name || r.Lineage == e.Lineage }
}

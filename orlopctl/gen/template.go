package gen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Template is the input for an object with a signed worker template.
type Template struct {
	Name   string // of the object; also the prefix of the names of the machines
	Match  string // an expression about the machines; empty for all machines
	Node   config.Node
	Rules  bool   // accept only machines that a signed rule approves
	Keep   bool   // a removed machine retains its configuration and its data
	Patch  []byte // of the documents; nil for no patch
	Expiry time.Time
}

// WorkerTemplate returns the documents for workers of the cluster of machine c. The documents
// contain no secret.
func WorkerTemplate(ctx context.Context, c *client.Client, t Template) ([]byte, error) {
	answer, err := c.Cluster.CreateTicket(ctx, &api.CreateTicketRequest{Name: t.Name})
	if err != nil {
		return nil, err
	}
	text, err := withTicket(answer, config.CertKey{}, t.Node)
	if err == nil && !t.Keep {
		text, err = config.Merge(text, []byte("kind: Machine\nspec: {join: {onRemoval: Wipe}}\n"))
	}
	if err == nil && t.Patch != nil {
		text, err = config.Merge(text, t.Patch)
	}
	if err != nil {
		return nil, err
	}
	next, problems := config.Parse("template", text)
	if len(problems) > 0 {
		return nil, problems
	}
	if !next.IsWorker() || next.Machine.Metadata.Name != t.Name || next.Machine.Spec.Join == nil || !next.Machine.Spec.Join.Ticket.IsZero() {
		return nil, errors.New("template: the patch may change neither the role, nor the name, nor the ticket")
	}
	return text, nil
}

// SignTemplate returns the OrlopMachineTemplate with signed documents, in YAML. The operator's CA
// issues a certificate for this signature only. The certificate expires with the template, and its
// key is dropped.
func SignTemplate(ca *pki.CA, t Template, documents []byte, now time.Time) ([]byte, error) {
	signer, err := IssueClient(ca, "template "+t.Name, []string{pki.RoleAdmin}, t.Expiry.Sub(now)+time.Minute)
	if err != nil {
		return nil, err
	}
	s, err := claim.Sign(claim.Template{Documents: documents, Prefix: t.Name, Expires: t.Expiry, RuleOnly: t.Rules}, signer, now)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1\nkind: OrlopMachineTemplate\nmetadata: {name: %q, namespace: orlop-machines}\nspec:\n  template:\n    spec:\n", t.Name)
	if t.Match != "" {
		fmt.Fprintf(&out, "      match: %q\n", t.Match)
	}
	literal(&out, "      ", "documents", s.Documents)
	literal(&out, "      ", "signature", s.Signature)
	return out.Bytes(), nil
}

// literal writes a YAML field with a text in literal style. The text must end with a newline.
func literal(out *bytes.Buffer, indent, name string, text []byte) {
	fmt.Fprintf(out, "%s%s: |\n", indent, name)
	for line := range strings.Lines(string(text)) {
		fmt.Fprintf(out, "%s  %s", indent, line)
	}
}

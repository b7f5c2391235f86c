package gen

import (
	"context"
	"crypto/x509"
	"fmt"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// WorkerConfig creates a ticket at a machine. It returns the worker's configuration with the
// ticket, and with the labels and taints of the node. The parameter ticket has the private key for
// the CSR in r; WorkerConfig adds the certificate that the machine returns. If the parameter is
// nil, r has no CSR: the machine's answer has no ticket, and neither has the configuration.
func WorkerConfig(ctx context.Context, c *client.Client, r *api.CreateTicketRequest, ticket *pki.Leaf, node config.Node) ([]byte, error) {
	answer, err := c.Cluster.CreateTicket(ctx, r)
	if err != nil {
		return nil, err
	}
	if ticket == nil {
		return withTicket(answer, config.CertKey{}, node)
	}
	if ticket.Cert, err = x509.ParseCertificate(answer.Certificate); err != nil {
		return nil, fmt.Errorf("ticket: cannot parse the certificate from the machine: %w", err)
	}
	pair, err := config.NewCertKey(string(ticket.CertPEM()), string(ticket.KeyPEM()))
	if err != nil {
		return nil, err
	}
	return withTicket(answer, pair, node)
}

// withTicket adds a ticket and the labels and taints of the node to a worker's configuration, and
// validates the result like the machine.
func withTicket(answer *api.CreateTicketResponse, ticket config.CertKey, node config.Node) ([]byte, error) {
	c, problems := config.Parse("worker", answer.Documents)
	if len(problems) == 0 {
		c = c.WithJoin(config.Join{Ticket: ticket, From: answer.ControlPlanes}).WithNode(node)
		problems = config.Check(c)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("the machine's answer cannot be used; compare its version with that of your tool: %w", problems.Err())
	}
	return config.Marshal(c), nil
}

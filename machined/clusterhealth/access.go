package clusterhealth

import (
	"net/url"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// AccessPoints returns the external services by which the API server of a configuration (nil for
// none) authenticates and authorizes clients. For the token webhook it returns only the host,
// because the URL can contain a secret.
func AccessPoints(c *config.Config) (p nodespec.AccessPoints) {
	if c == nil || c.Cluster == nil {
		return p
	}
	k := c.Cluster.Spec.Kubernetes
	for _, j := range k.Authentication.JWT {
		p.Issuers = append(p.Issuers, j.URL)
	}
	if w := k.Authentication.Webhook; w != nil {
		if u, err := url.Parse(w.URL); err == nil {
			p.TokenWebhook = u.Host
		}
	}
	for _, w := range k.Authorization.Webhooks {
		p.Authorizers = append(p.Authorizers, nodespec.Authorizer{Name: w.Name, FailurePolicy: string(w.FailurePolicy)})
	}
	return p
}

package config

import "time"

// Authentication adds authenticators. Client certificates and service-account tokens are always
// accepted; static tokens and passwords never are. Anonymous callers can only query the health of
// the API server.
type Authentication struct {
	// JWT are the issuers of accepted OpenID Connect tokens, at most 64. Changes need no restart.
	JWT []JWTIssuer `yaml:"jwt,omitempty"`
	// Webhook is a service that verifies bearer tokens that no other authenticator accepts
	// (TokenReview API).
	Webhook *AuthenticationWebhook `yaml:"webhook,omitempty"`
}

// JWTIssuer is an issuer of OpenID Connect tokens, with the mapping of its claims. Expressions are
// CEL over the variable claims (userRules: user), as in the API server's
// AuthenticationConfiguration.
type JWTIssuer struct {
	// URL is the token's iss claim: https, without query and fragment. It is the base URL of OpenID
	// discovery for the keys.
	URL string `yaml:"url" jsonschema:"required"`
	// DiscoveryURL is the URL of the discovery document, if it is not below the issuer's URL.
	DiscoveryURL string `yaml:"discoveryURL,omitempty"`
	// CA is the CA of the issuer's server certificate, in PEM. The default is the system's list of
	// public CAs.
	CA Bundle `yaml:"ca,omitempty"`
	// Audiences are the accepted values of the token's aud claim.
	Audiences []string `yaml:"audiences" jsonschema:"required"`
	// ClaimRules must all be true for an accepted token.
	ClaimRules []Rule `yaml:"claimRules,omitempty"`
	// Username is an expression for the user's name.
	Username string `yaml:"username" jsonschema:"required"`
	// Groups is an expression for the user's groups: a string or a list of strings.
	Groups string `yaml:"groups,omitempty"`
	// UID is an expression for the user's unique ID.
	UID string `yaml:"uid,omitempty"`
	// Extra adds attributes of the user: the key is a domain-prefixed path in lower case, the value
	// an expression.
	Extra map[string]string `yaml:"extra,omitempty"`
	// UserRules must all be true for the resulting user.
	UserRules []Rule `yaml:"userRules,omitempty"`
}

// Rule is an expression that must be true.
type Rule struct {
	// Expression is a CEL expression of type bool.
	Expression string `yaml:"expression" jsonschema:"required"`
	// Message is the log message if the expression is false.
	Message string `yaml:"message,omitempty"`
}

// AuthenticationWebhook is a service that verifies bearer tokens.
type AuthenticationWebhook struct {
	// URL is the https URL of the service.
	URL string `yaml:"url" jsonschema:"required"`
	// CA is the CA of the service's server certificate, in PEM.
	CA Bundle `yaml:"ca" jsonschema:"required"`
	// Client is the client certificate of the API server with its key; default: none.
	Client *CertKey `yaml:"client,omitempty"`
	// CacheTTL is the time for which an answer is cached, 0s to 1h.
	CacheTTL Duration `yaml:"cacheTTL"`
}

func (w *AuthenticationWebhook) defaults() { w.CacheTTL = Duration(2 * time.Minute) }

// Authorization adds authorization services. The order is: Node, these services in order, RBAC.
// Therefore a service can deny a request that RBAC would permit.
type Authorization struct {
	// Webhooks are called in this order (SubjectAccessReview API), at most 16.
	Webhooks []AuthorizationWebhook `yaml:"webhooks,omitempty"`
}

// AuthorizationWebhook is a service that authorizes requests.
type AuthorizationWebhook struct {
	// Name identifies the service in logs and metrics: a DNS label or subdomain, unique.
	Name string `yaml:"name" jsonschema:"required"`
	// URL is the https URL of the service.
	URL string `yaml:"url" jsonschema:"required"`
	// CA is the CA of the service's server certificate, in PEM.
	CA Bundle `yaml:"ca" jsonschema:"required"`
	// Client is the client certificate of the API server with its key; default: none.
	Client *CertKey `yaml:"client,omitempty"`
	// Timeout is the timeout of a call, more than 0s, at most 30s.
	Timeout Duration `yaml:"timeout"`
	// AuthorizedTTL is the time for which a positive answer is cached, more than 0s, at most 1h.
	AuthorizedTTL Duration `yaml:"authorizedTTL"`
	// UnauthorizedTTL is the time for which a negative answer is cached, more than 0s, at most 1h.
	UnauthorizedTTL Duration `yaml:"unauthorizedTTL"`
	// FailurePolicy applies when the service does not answer: NoOpinion continues with the next
	// service, Deny rejects the request.
	FailurePolicy FailurePolicy `yaml:"failurePolicy"`
	// MatchConditions are CEL expressions over the variable request, at most 63; the service is
	// called only if all are true. It is never called for the cluster's own components, so that an
	// unreachable service cannot block the components that are necessary to restore it.
	MatchConditions []string `yaml:"matchConditions,omitempty"`
}

// FailurePolicy applies when a webhook does not answer.
type FailurePolicy string

// The failure policies.
const (
	FailureNoOpinion FailurePolicy = "NoOpinion"
	FailureDeny      FailurePolicy = "Deny"
)

// Names returns the failure policies.
func (FailurePolicy) Names() []string { return []string{string(FailureDeny), string(FailureNoOpinion)} }

func (w *AuthorizationWebhook) defaults() {
	w.Timeout = Duration(3 * time.Second)
	w.AuthorizedTTL = Duration(5 * time.Minute)
	w.UnauthorizedTTL = Duration(30 * time.Second)
	w.FailurePolicy = FailureDeny
}

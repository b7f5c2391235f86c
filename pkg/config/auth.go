package config

import "time"

// Authentication adds ways to prove who a caller is. Client certificates and service-account tokens
// always work; static tokens and passwords never do; a caller who proves nothing may only ask for
// health.
type Authentication struct {
	// JWT are the issuers whose OpenID Connect tokens are accepted, at most 64. Changing them needs
	// no restart.
	JWT []JWTIssuer `yaml:"jwt,omitempty"`
	// Webhook is a service that is asked about bearer tokens that nobody else knows (the
	// TokenReview API).
	Webhook *AuthenticationWebhook `yaml:"webhook,omitempty"`
}

// JWTIssuer is one issuer of OpenID Connect tokens, with what its claims mean. Expressions are CEL
// over the variable claims (userRules: user), as in the API server's AuthenticationConfiguration.
type JWTIssuer struct {
	// URL is the token's iss claim: https, without query and fragment. Keys are found by OpenID
	// discovery below it.
	URL string `yaml:"url" jsonschema:"required"`
	// DiscoveryURL is where the discovery document really is, when that is not below the issuer's
	// URL.
	DiscoveryURL string `yaml:"discoveryURL,omitempty"`
	// CA signs the issuer's server certificate, in PEM. Without it the system's own list of
	// authorities counts.
	CA Bundle `yaml:"ca,omitempty"`
	// Audiences: the token's aud claim must hold one of these.
	Audiences []string `yaml:"audiences" jsonschema:"required"`
	// ClaimRules must all be true for a token to be accepted.
	ClaimRules []Rule `yaml:"claimRules,omitempty"`
	// Username is an expression that gives the user's name.
	Username string `yaml:"username" jsonschema:"required"`
	// Groups is an expression that gives the user's groups: a string or a list of strings.
	Groups string `yaml:"groups,omitempty"`
	// UID is an expression that gives the user's unique id.
	UID string `yaml:"uid,omitempty"`
	// Extra gives further attributes of the user: the key is a domain-prefixed path in lower case,
	// the value an expression.
	Extra map[string]string `yaml:"extra,omitempty"`
	// UserRules must all be true for the user that came out.
	UserRules []Rule `yaml:"userRules,omitempty"`
}

// Rule is an expression that must be true.
type Rule struct {
	// Expression in CEL that gives a bool.
	Expression string `yaml:"expression" jsonschema:"required"`
	// Message is what the log says when the expression is false.
	Message string `yaml:"message,omitempty"`
}

// AuthenticationWebhook is a service that is asked about bearer tokens.
type AuthenticationWebhook struct {
	// URL of the service, https.
	URL string `yaml:"url" jsonschema:"required"`
	// CA signs the service's server certificate, in PEM.
	CA Bundle `yaml:"ca" jsonschema:"required"`
	// Client is the certificate and key that the API server shows to the service; without it, none.
	Client *CertKey `yaml:"client,omitempty"`
	// CacheTTL is how long an answer is kept, 0s to 1h.
	CacheTTL Duration `yaml:"cacheTTL"`
}

func (w *AuthenticationWebhook) defaults() { w.CacheTTL = Duration(2 * time.Minute) }

// Authorization adds services that are asked what a caller may do. The order is: Node, then these
// in order, then RBAC; so a service can forbid what RBAC would allow.
type Authorization struct {
	// Webhooks are asked in this order (the SubjectAccessReview API), at most 16.
	Webhooks []AuthorizationWebhook `yaml:"webhooks,omitempty"`
}

// AuthorizationWebhook is a service that is asked what a caller may do.
type AuthorizationWebhook struct {
	// Name in logs and metrics: a DNS label or subdomain, unique.
	Name string `yaml:"name" jsonschema:"required"`
	// URL of the service, https.
	URL string `yaml:"url" jsonschema:"required"`
	// CA signs the service's server certificate, in PEM.
	CA Bundle `yaml:"ca" jsonschema:"required"`
	// Client is the certificate and key that the API server shows to the service; without it, none.
	Client *CertKey `yaml:"client,omitempty"`
	// Timeout of one question, more than 0s, at most 30s.
	Timeout Duration `yaml:"timeout"`
	// AuthorizedTTL is how long a yes is kept, more than 0s, at most 1h.
	AuthorizedTTL Duration `yaml:"authorizedTTL"`
	// UnauthorizedTTL is how long a no is kept, more than 0s, at most 1h.
	UnauthorizedTTL Duration `yaml:"unauthorizedTTL"`
	// FailurePolicy is what counts when the service does not answer: NoOpinion asks the next one,
	// Deny refuses the call.
	FailurePolicy FailurePolicy `yaml:"failurePolicy"`
	// MatchConditions are CEL expressions over the variable request; the service is asked only when
	// all are true. At most 63. The cluster's own components are never asked about, so that a
	// service that is away cannot stop what has to bring it back.
	MatchConditions []string `yaml:"matchConditions,omitempty"`
}

// FailurePolicy is what counts when a webhook does not answer.
type FailurePolicy string

// The failure policies.
const (
	FailureNoOpinion FailurePolicy = "NoOpinion"
	FailureDeny      FailurePolicy = "Deny"
)

// Names lists the failure policies.
func (FailurePolicy) Names() []string { return []string{string(FailureDeny), string(FailureNoOpinion)} }

func (w *AuthorizationWebhook) defaults() {
	w.Timeout = Duration(3 * time.Second)
	w.AuthorizedTTL = Duration(5 * time.Minute)
	w.UnauthorizedTTL = Duration(30 * time.Second)
	w.FailurePolicy = FailureDeny
}

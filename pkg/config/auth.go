package config

import "time"

// Authentication adds authenticators to the API server. Client certificates and service-account
// tokens are always accepted; static tokens and passwords never are. Anonymous callers can only
// query the health of the API server.
type Authentication struct {
	JWT     []JWTIssuer            `yaml:"jwt,omitempty"`
	Webhook *AuthenticationWebhook `yaml:"webhook,omitempty"`
}

// JWTIssuer is an issuer of OpenID Connect tokens, with the mapping of its claims. Expressions are
// in CEL, as in the API server's AuthenticationConfiguration. Their variable is claims, or user in
// UserRules.
type JWTIssuer struct {
	URL          string            `yaml:"url" jsonschema:"required"`
	DiscoveryURL string            `yaml:"discoveryURL,omitempty"`
	CA           Bundle            `yaml:"ca,omitempty"`
	Audiences    []string          `yaml:"audiences" jsonschema:"required"`
	ClaimRules   []Rule            `yaml:"claimRules,omitempty"`
	Username     string            `yaml:"username" jsonschema:"required"`
	Groups       string            `yaml:"groups,omitempty"`
	UID          string            `yaml:"uid,omitempty"`
	Extra        map[string]string `yaml:"extra,omitempty"`
	UserRules    []Rule            `yaml:"userRules,omitempty"`
}

// Rule is an expression that must be true, and the error message if it is not.
type Rule struct {
	Expression string `yaml:"expression" jsonschema:"required"`
	Message    string `yaml:"message,omitempty"`
}

// AuthenticationWebhook is a service that verifies bearer tokens.
type AuthenticationWebhook struct {
	URL      string   `yaml:"url" jsonschema:"required"`
	CA       Bundle   `yaml:"ca" jsonschema:"required"`
	Client   *CertKey `yaml:"client,omitempty"`
	CacheTTL Duration `yaml:"cacheTTL" limits:"0s to 1h"`
}

func (w *AuthenticationWebhook) defaults() { w.CacheTTL = Duration(2 * time.Minute) }

// Authorization adds authorization services. The API server asks the Node authorizer first, then
// these services in order, then RBAC. Therefore a service can deny a request that RBAC would
// permit.
type Authorization struct {
	Webhooks []AuthorizationWebhook `yaml:"webhooks,omitempty"`
}

// AuthorizationWebhook is a service that authorizes requests.
type AuthorizationWebhook struct {
	Name            string        `yaml:"name" jsonschema:"required"`
	URL             string        `yaml:"url" jsonschema:"required"`
	CA              Bundle        `yaml:"ca" jsonschema:"required"`
	Client          *CertKey      `yaml:"client,omitempty"`
	Timeout         Duration      `yaml:"timeout"`
	AuthorizedTTL   Duration      `yaml:"authorizedTTL"`
	UnauthorizedTTL Duration      `yaml:"unauthorizedTTL"`
	FailurePolicy   FailurePolicy `yaml:"failurePolicy"`
	MatchConditions []string      `yaml:"matchConditions,omitempty"`
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

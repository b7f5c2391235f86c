package nodespec

// ClusterReport is the state of the cluster that machined passes to the controllers.
type ClusterReport struct {
	// Health is an encoded api.ClusterHealthResponse (protocol buffers).
	Health []byte       `json:"health"`
	Access AccessPoints `json:"access"`
}

// AccessPoints are the services that the configuration adds to the authentication and authorization
// of the API server. They contain no secret.
type AccessPoints struct {
	Issuers      []string     `json:"issuers,omitempty"`      // URLs of token issuers
	TokenWebhook string       `json:"tokenWebhook,omitempty"` // its host; empty: none
	Authorizers  []Authorizer `json:"authorizers,omitempty"`  // in order, after Node
}

// Authorizer is a service that authorizes requests.
type Authorizer struct {
	Name          string `json:"name"`
	FailurePolicy string `json:"failurePolicy"`
}

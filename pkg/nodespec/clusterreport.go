package nodespec

// ClusterReport is the state of the cluster that machined passes to the controllers in the file
// ClusterReportFile.
type ClusterReport struct {
	// Health is an encoded api.ClusterHealthResponse (protocol buffers).
	Health []byte       `json:"health"`
	Access AccessPoints `json:"access"`
}

// AccessPoints are the authentication and authorization services that the configuration adds to the
// API server. They contain no secret.
type AccessPoints struct {
	Issuers      []string     `json:"issuers,omitempty"`      // URLs of token issuers
	TokenWebhook string       `json:"tokenWebhook,omitempty"` // host of the webhook; empty for none
	Authorizers  []Authorizer `json:"authorizers,omitempty"`  // in the order of calls, after Node
}

// Authorizer is a webhook that authorizes requests to the API server.
type Authorizer struct {
	Name          string `json:"name"`
	FailurePolicy string `json:"failurePolicy"`
}

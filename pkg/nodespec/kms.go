package nodespec

import "time"

// KMS is the content of KMSFile: the key manager that encrypts the keys of Secrets, and the
// credentials of the machine for it.
type KMS struct {
	Endpoint    string          `json:"endpoint"` // https://host:port
	CAs         string          `json:"cas"`      // CAs of the server, PEM
	Namespace   string          `json:"namespace,omitempty"`
	Mount       string          `json:"mount"`
	Key         string          `json:"key"`
	AppRole     *KMSAppRole     `json:"appRole,omitempty"`
	Certificate *KMSCertificate `json:"certificate,omitempty"`
}

// KMSAppRole is a login of the machine with an ID and a secret.
type KMSAppRole struct {
	Mount    string `json:"mount"`
	RoleID   string `json:"roleID"`
	SecretID string `json:"secretID"`
}

// KMSCertificate is the TLS client certificate of the machine. Without an AppRole, the machine also
// logs in with it.
type KMSCertificate struct {
	Mount string `json:"mount"`
	Role  string `json:"role,omitempty"`
	Cert  string `json:"cert"` // PEM
	Key   string `json:"key"`  // PEM
}

// KMSTimeout is the time limit of the API server for a request to the key manager.
const KMSTimeout = 10 * time.Second

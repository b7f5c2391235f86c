package nodespec

import "time"

// KMS is the content of KMSFile: the key manager of Secrets, with the credentials of the machine.
type KMS struct {
	Endpoint    string          `json:"endpoint"` // https://host:port
	CAs         string          `json:"cas"`      // PEM: the CAs of the server's certificate
	Namespace   string          `json:"namespace,omitempty"`
	Mount       string          `json:"mount"`
	Key         string          `json:"key"`
	AppRole     *KMSAppRole     `json:"appRole,omitempty"`
	Certificate *KMSCertificate `json:"certificate,omitempty"`
}

// KMSAppRole logs the machine in with an ID and a secret.
type KMSAppRole struct {
	Mount    string `json:"mount"`
	RoleID   string `json:"roleID"`
	SecretID string `json:"secretID"`
}

// KMSCertificate is presented to the server, and logs the machine in if there is no AppRole.
type KMSCertificate struct {
	Mount string `json:"mount"`
	Role  string `json:"role,omitempty"`
	Cert  string `json:"cert"` // PEM
	Key   string `json:"key"`  // PEM
}

// KMSTimeout is how long the API server waits for an answer of the key manager.
const KMSTimeout = 10 * time.Second

package config

import (
	"slices"
)

// New returns the configuration of a machine with all defaults and without a Cluster document. The
// With functions return modified copies. The result is not validated; Check does that.
func New(name string, role Role) *Config {
	c := &Config{}
	c.Machine.defaults()
	c.Network.defaults()
	c.Machine.Metadata.Name = name
	c.Machine.Spec.Role = role
	return c
}

// IsWorker reports whether a configuration (nil for none) makes the machine a worker of a cluster.
func (c *Config) IsWorker() bool {
	return c != nil && c.Cluster != nil && c.Machine.Spec.Role == RoleWorker
}

// IsControlPlane reports whether a configuration (nil for none) makes the machine a control-plane
// machine.
func (c *Config) IsControlPlane() bool {
	return c != nil && c.Cluster != nil && c.Machine.Spec.Role == RoleControlPlane
}

// HasMachineObjects reports whether a configuration (nil for none) enables the Kubernetes objects
// that describe machines (MachineObjects).
func (c *Config) HasMachineObjects() bool {
	return c != nil && c.Cluster != nil && c.Cluster.Spec.Kubernetes.MachineObjects.Enabled
}

// WithOperatorCAs sets the operator CAs.
func (c *Config) WithOperatorCAs(cas ...Certificate) *Config {
	d := *c
	d.Machine.Spec.Trust.OperatorCAs = slices.Clone(cas)
	return &d
}

// WithCluster adds a Cluster document with all defaults.
func (c *Config) WithCluster(name string, endpoint Endpoint, pki PKI, key EncryptionKey) *Config {
	d := *c
	d.Cluster = new(Cluster)
	d.Cluster.defaults()
	d.Cluster.Metadata.Name = name
	d.Cluster.Spec.Endpoint = endpoint
	d.Cluster.Spec.PKI = pki
	d.Cluster.Spec.SecretsEncryptionKey = key
	return &d
}

// WithJoin sets the join parameters.
func (c *Config) WithJoin(j Join) *Config {
	d := *c
	d.Machine.Spec.Join = &j
	return &d
}

// WithNode sets the labels and taints of the machine's Node.
func (c *Config) WithNode(n Node) *Config {
	d := *c
	d.Machine.Spec.Node = n
	return &d
}

// WithNetwork sets the machine's own network.
func (c *Config) WithNetwork(spec NetworkSpec) *Config {
	d := *c
	d.Network.Spec = spec
	return &d
}

// NewCertKey parses a certificate and its private key, both in PEM.
func NewCertKey(cert, key string) (CertKey, error) {
	c, err := ParseCertificate(cert)
	if err != nil {
		return CertKey{}, err
	}
	k, err := ParsePrivateKey(key)
	if err != nil {
		return CertKey{}, err
	}
	return CertKey{Cert: c, Key: k}, nil
}

// ParseEndpoint parses https://host:port.
func ParseEndpoint(url string) (Endpoint, error) {
	var e Endpoint
	err := e.UnmarshalText([]byte(url))
	return e, err
}

// Check validates a generated configuration like Parse. Line numbers refer to the output of
// Marshal.
func Check(c *Config) Problems {
	_, problems := Parse("generated", Marshal(c))
	return problems
}

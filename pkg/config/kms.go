package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// KMS encrypts Secrets in etcd with a key that only a key manager has. The fields contain secrets,
// so the processes of Kubernetes get them in a separate file (nodespec.KMS). The node specification
// states only whether a key manager is configured.
type KMS struct {
	// Encrypt means that the key manager encrypts Secrets. If it is false, the key manager only
	// decrypts Secrets that are encrypted already.
	Encrypt bool     `yaml:"encrypt" json:"-"`
	Transit *Transit `yaml:"transit" json:"-" jsonschema:"required"`
}

// Transit is a key of the secrets engine Transit of HashiCorp Vault or OpenBao.
type Transit struct {
	Endpoint  Endpoint `yaml:"endpoint" jsonschema:"required"`
	CA        Bundle   `yaml:"ca,omitempty"`
	Namespace string   `yaml:"namespace,omitempty"`
	Mount     string   `yaml:"mount"`
	Key       string   `yaml:"key" jsonschema:"required"`
	// At least one of AppRole and Certificate is set. The machine presents the certificate in each
	// TLS connection, and logs in with the certificate if AppRole is not set.
	AppRole     *AppRole            `yaml:"appRole,omitempty"`
	Certificate *TransitCertificate `yaml:"certificate,omitempty"`
}

// AppRole authenticates the machine by an ID and a secret.
type AppRole struct {
	Mount    string `yaml:"mount"`
	RoleID   string `yaml:"roleID" jsonschema:"required"`
	SecretID Secret `yaml:"secretID" jsonschema:"required"`
}

// TransitCertificate authenticates the machine by a TLS certificate.
type TransitCertificate struct {
	Mount string      `yaml:"mount"`
	Role  string      `yaml:"role,omitempty"`
	Cert  Certificate `yaml:"cert" jsonschema:"required"`
	Key   PrivateKey  `yaml:"key" jsonschema:"required"`
}

func (t *Transit) defaults()            { t.Mount = "transit" }
func (a *AppRole) defaults()            { a.Mount = "approle" }
func (c *TransitCertificate) defaults() { c.Mount = "cert" }

// Name returns a name that identifies the key. The name is stored with the data that the key
// encrypts, and keys are compared by name. It does not depend on the address of the key manager,
// because the address can change.
func (k *KMS) Name() string {
	if k == nil || k.Transit == nil {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{"orlop: the name of a key of transit", k.Transit.Namespace, k.Transit.Mount, k.Transit.Key}, "\n")))
	return "transit-" + hex.EncodeToString(sum[:4])
}

// Revealed returns the fields of the key manager with their secrets, in the format of a
// configuration patch; nil without a key manager.
func (k *KMS) Revealed() (map[string]any, error) {
	if k == nil {
		return nil, nil
	}
	var fields map[string]any
	err := printer{reveal: true}.node(reflect.ValueOf(k), "").Decode(&fields)
	return fields, err
}

// certKey converts the certificate to the type for client certificates; nil without a certificate.
func (c *TransitCertificate) certKey() *CertKey {
	if c == nil {
		return nil
	}
	return &CertKey{Cert: c.Cert, Key: c.Key}
}

// kms validates the key manager.
func (v clusterValidator) kms(path string, k *KMS, n *ClusterNetworks) {
	if v.cfg.IsWorker() {
		v.notOnWorker(path, k == nil)
		return
	}
	if k == nil || k.Transit == nil {
		return
	}
	path += ".transit"
	t := k.Transit
	v.bundle(path+".ca", t.CA)
	if t.CA.IsZero() && v.cfg.Machine.Spec.Egress.CA.IsZero() && !v.broken[path+".ca"] {
		v.on(path+".ca", wrong{reason: "no CA is given for the server, and public CAs are not trusted here", expected: "the CA of its certificate here or in Machine.spec.egress.ca"})
	}
	if a, err := netip.ParseAddr(t.Endpoint.Host); err == nil {
		if slices.ContainsFunc(slices.Concat(n.Pods, n.Services), func(r netip.Prefix) bool { return r.Contains(a) }) {
			v.on(path+".endpoint", wrong{reason: t.Endpoint.Host + " is an address inside the cluster, which cannot start its pods without the key manager", expected: "a server outside the cluster"})
		}
	} else if n.Domain != "" && strings.HasSuffix(t.Endpoint.Host, "."+n.Domain) {
		v.on(path+".endpoint", wrong{reason: t.Endpoint.Host + " is a Service of the cluster, which cannot start its pods without the key manager", expected: "a server outside the cluster"})
	}
	v.transitPath(path+".namespace", t.Namespace, "a namespace, such as team/site-1")
	v.transitPath(path+".mount", t.Mount, "the path of the secrets engine, such as transit")
	v.transitPath(path+".key", t.Key, "the name of a key, such as orlop")
	if strings.Contains(t.Key, "/") && isPrefix(t.Key) {
		v.on(path+".key", wrong{reason: quote(t.Key) + ` contains "/"`, expected: "the name of a key; the path of its secrets engine is in mount"})
	}
	v.transitLogin(path, t)
}

// transitLogin validates the credentials.
func (v clusterValidator) transitLogin(path string, t *Transit) {
	if t.AppRole == nil && t.Certificate == nil && !v.broken[path+".appRole"] && !v.broken[path+".certificate"] {
		v.on(path, wrong{reason: "the credentials of the machine are missing", expected: "appRole or certificate"})
	}
	if a := t.AppRole; a != nil {
		at := path + ".appRole"
		v.transitPath(at+".mount", a.Mount, "the path of the authentication method, such as approle")
		for _, id := range []struct{ name, text string }{{"roleID", a.RoleID}, {"secretID", a.SecretID.Reveal()}} {
			if strings.ContainsFunc(id.text, func(r rune) bool { return r <= ' ' || r > '~' }) || len(id.text) > 4096 {
				v.on(at+"."+id.name, wrong{reason: "contains characters that no such ID has, or is too long", expected: "the ID as the server shows it"})
			}
		}
	}
	if c := t.Certificate; c != nil {
		v.transitPath(path+".certificate.mount", c.Mount, "the path of the authentication method, such as cert")
		v.transitPath(path+".certificate.role", c.Role, "the name of a role, such as orlop")
		v.client(path+".certificate", c.certKey())
	}
}

// transitPath validates a field that becomes a part of the path of a request. It ignores an empty
// text: the field was omitted, because the decoder rejects a field with an empty text.
func (v clusterValidator) transitPath(path, text, want string) {
	if text != "" && !isPrefix(text) {
		v.on(path, wrong{reason: fmt.Sprintf("%s is not such a name", quote(text)), expected: want + `: letters, digits, ".", "_" and "-", with "/" between names`, nearest: nearestPrefix(text)})
	}
}

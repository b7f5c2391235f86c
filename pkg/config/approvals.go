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

// Approvals is the rule by which two operators must approve some calls
// (docs/decisions/0123-two-person-approval.md).
type Approvals struct {
	Approvers []Approver      `yaml:"approvers" jsonschema:"required"`
	Calls     []ApprovalCalls `yaml:"calls,omitempty"`
}

// Approver is an operator with a key that approves calls.
type Approver struct {
	Name string         `yaml:"name" jsonschema:"required"`
	Key  KeyFingerprint `yaml:"key" jsonschema:"required"`
}

// The limits of the number of approvers. Two of them sign each approval (approval.Signatures). With
// a third key, the loss of a key does not lock the guarded calls for ever.
const minApprovers, maxApprovers = 3, 16

// ApprovalCalls is a group of calls that need an approval.
type ApprovalCalls string

// The groups of calls.
const (
	CallsWipe     ApprovalCalls = "wipe"     // erase a machine, a disk or a volume
	CallsEtcd     ApprovalCalls = "etcd"     // replace or drop data of etcd, remove a member
	CallsMembers  ApprovalCalls = "members"  // remove a machine from the cluster
	CallsKeys     ApprovalCalls = "keys"     // change CAs and encryption keys of the cluster
	CallsPolicies ApprovalCalls = "policies" // change the sealed policies
	// callsTrust change the operators or the rule itself. No configuration names the group, because
	// every rule guards it.
	callsTrust ApprovalCalls = "trust"
)

// Names returns the groups that a configuration can name.
func (ApprovalCalls) Names() []string {
	return []string{string(CallsWipe), string(CallsEtcd), string(CallsMembers), string(CallsKeys), string(CallsPolicies)}
}

// Guards reports whether calls of a group need an approval. A nil rule guards no call.
func (a *Approvals) Guards(c ApprovalCalls) bool {
	return a != nil && (c == callsTrust || len(a.Calls) == 0 || slices.Contains(a.Calls, c))
}

// KeyFingerprint is the fingerprint of a public key (pki.Fingerprint): "sha256:" and 64 hexadecimal
// digits.
type KeyFingerprint string

// UnmarshalText parses a fingerprint. The text may have upper-case letters, and colons between the
// bytes.
func (k *KeyFingerprint) UnmarshalText(text []byte) error {
	digits, found := strings.CutPrefix(strings.ToLower(string(text)), "sha256:")
	digits = strings.ReplaceAll(digits, ":", "")
	if sum, err := hex.DecodeString(digits); !found || err != nil || len(sum) != sha256.Size {
		return &wrong{reason: quote(string(text)) + " is no fingerprint of a key", expected: "sha256: and 64 hexadecimal digits, as `orlopctl approval key` prints them"}
	}
	*k = KeyFingerprint("sha256:" + digits)
	return nil
}

// MarshalText returns the text.
func (k KeyFingerprint) MarshalText() ([]byte, error) { return []byte(k), nil }

// isApproverName reports whether a name is permitted, as for a certificate of a machine
// (trust.CheckName).
func isApproverName(name string) bool {
	const first = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return len(name) <= 64 && strings.Trim(name, first+"._@-") == "" && strings.IndexAny(name, first) == 0
}

// approvals checks the rule.
func (v machineValidator) approvals(path string, a *Approvals) {
	if n := len(a.Approvers); n < minApprovers || n > maxApprovers {
		v.on(path+".approvers", wrong{
			reason:   fmt.Sprintf("has %d approvers", n),
			expected: fmt.Sprintf("%d to %d", minApprovers, maxApprovers),
			hint:     "two of them sign each approval, and the loss of one key must not lock the calls for ever",
		})
	}
	names, keys := map[string]int{}, map[string]int{}
	for i, p := range a.Approvers {
		at := fmt.Sprintf("%s.approvers[%d]", path, i)
		if p.Name != "" && !isApproverName(p.Name) {
			v.on(at+".name", wrong{reason: quote(p.Name) + " is no name of an operator", expected: "1 to 64 letters, digits and . _ @ -, beginning with a letter or a digit"})
		}
		v.unique(at+".name", path+".approvers", p.Name, i, names)
		v.unique(at+".key", path+".approvers", string(p.Key), i, keys)
	}
	seen := map[string]int{}
	for i, c := range a.Calls {
		v.unique(fmt.Sprintf("%s.calls[%d]", path, i), path+".calls", string(c), i, seen)
	}
}

// Approvals returns the rule for approvals; nil if the configuration has none. A nil configuration
// has none.
func (c *Config) Approvals() *Approvals {
	if c == nil {
		return nil
	}
	return c.Machine.Spec.Trust.Approvals
}

// guardedField is a field or a block, a change of which can need an approval.
type guardedField struct {
	path  string
	calls ApprovalCalls
	// harmless reports whether a change needs no approval; nil: every change needs an
	// approval.
	harmless func(before, after *Config) bool
}

// guardedFields are the fields by which an operator could replace the operators, the rule, the keys
// or the policies, or could erase a machine.
var guardedFields = []guardedField{
	{"Machine.spec.trust", callsTrust, nil},
	{"Machine.spec.join", CallsWipe, func(before, after *Config) bool {
		return wipesOnRemoval(before) || !wipesOnRemoval(after)
	}},
	{"Cluster.spec.controlPlanes", CallsMembers, keepsControlPlanes},
	{"Cluster.spec.pki.client", callsTrust, nil},
	{"Cluster.spec.pki.accepted.client", callsTrust, nil},
	{"Cluster.spec.pki", CallsKeys, nil},
	{"Cluster.spec.secretsEncryptionKey", CallsKeys, nil},
	{"Cluster.spec.acceptedEncryptionKeys", CallsKeys, nil},
	{"Cluster.spec.kubernetes.apiServer.kms", CallsKeys, sameKMSKey},
	{"Cluster.spec.kubernetes.sealedPolicies", CallsPolicies, nil},
}

// wipesOnRemoval reports whether a removal of the machine from its cluster erases the machine.
func wipesOnRemoval(c *Config) bool {
	return c.Machine.Spec.Join != nil && c.Machine.Spec.Join.OnRemoval == RemovalWipe
}

// keepsControlPlanes reports whether a change removes no control-plane machine from the list.
func keepsControlPlanes(before, after *Config) bool {
	if before.Cluster == nil {
		return true
	}
	return after.Cluster != nil && !slices.ContainsFunc(before.Cluster.Spec.ControlPlanes, func(a netip.Addr) bool {
		return !slices.Contains(after.Cluster.Spec.ControlPlanes, a)
	})
}

// sameKMSKey reports whether a change retains both the key of the key manager and the field
// Encrypt. The credentials for the key manager can then change without an approval.
func sameKMSKey(before, after *Config) bool {
	was, is := kmsOf(before), kmsOf(after)
	return was.Name() == is.Name() && (was != nil && was.Encrypt) == (is != nil && is.Encrypt)
}

func kmsOf(c *Config) *KMS {
	if c.Cluster == nil {
		return nil
	}
	return c.Cluster.Spec.Kubernetes.APIServer.KMS
}

// Guarded returns the new values of the guarded fields that a change sets, by their paths. rule is
// the rule in use; with a nil rule, there are none. Secrets are replaced by digests. An empty value
// means that the change removes the field.
func Guarded(rule *Approvals, before, after *Config) map[string]string {
	out := map[string]string{}
	if rule == nil || before == nil || after == nil {
		return out
	}
	was, is := guardedValues(before, printer{reveal: true}), guardedValues(after, printer{reveal: true})
	shown := guardedValues(after, printer{digest: true})
	for path, value := range is {
		if was[path] != value {
			out[path] = shown[path]
		}
	}
	for path := range was {
		if _, stays := is[path]; !stays {
			out[path] = ""
		}
	}
	for path := range out {
		if f := guardOf(path); !rule.Guards(f.calls) || f.harmless != nil && f.harmless(before, after) {
			delete(out, path)
		}
	}
	return out
}

// guardedValues returns the values of all guarded fields that are set, by their paths.
func guardedValues(c *Config, p printer) map[string]string {
	out := map[string]string{}
	add := func(path string, v reflect.Value) {
		if guardOf(path).path != "" && !isEmpty(v) {
			out[path] = string(p.text(path, v))
		}
	}
	digestFields("Machine", reflect.ValueOf(c.Machine), add)
	if c.Cluster != nil {
		digestFields("Cluster", reflect.ValueOf(c.Cluster).Elem(), add)
	}
	return out
}

// guardOf returns the first row of guardedFields that contains a field; the zero value if there is
// none.
func guardOf(path string) guardedField {
	for _, f := range guardedFields {
		if path == f.path || strings.HasPrefix(path, f.path+".") {
			return f
		}
	}
	return guardedField{}
}

// secretDigest returns the text that replaces a secret in a value that operators approve.
func secretDigest(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return "(secret, sha256:" + hex.EncodeToString(sum[:]) + ")"
}

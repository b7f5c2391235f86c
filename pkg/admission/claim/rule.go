package claim

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/strictyaml"
)

const (
	// MaxRule is the maximum size of a rule, in bytes.
	MaxRule = 24 << 10
	// maxMachines is the maximum number of machines of a rule.
	maxMachines = 128
	// maxIdentity is the maximum length of a serial number and of a UUID, in bytes. A longer one
	// would match no machine, because the texts of an inventory have the same limit (package
	// inventory).
	maxIdentity = 64
	// maxMatch is the maximum length of the expression of a rule.
	maxMatch = 4096
)

// ruleKind describes signed rules. The PEM block of their signature has no headers, because the
// signed text contains all fields.
var ruleKind = documentKind{
	noun: "rule", context: "orlop-approval-rule/1\n", block: "ORLOP APPROVAL RULE SIGNATURE",
	remedy: "sign it again (`orlopctl nodes rule`)",
}

// Rule approves waiting machines by the serial number or the UUID that they state in their
// inventory (docs/decisions/0120-approval-rules.md). Such a statement proves nothing, because any
// machine in the network can state the same number. Therefore a rule lists machines, approves each
// of them only once, and has a maximum number of approvals and an expiry.
type Rule struct {
	Machines []Identity `json:"machines"`
	// Match is an expression in CEL over the inventory. If it is empty, every listed machine
	// matches. This package does not evaluate the expression.
	Match string `json:"match,omitempty"`
	// Maximum is the maximum number of approvals: from 1 to the number of Machines.
	Maximum int `json:"maximum"`
	// Signed is the time of the signature. An approval before this time does not count: the rule
	// can approve another machine with the same serial number or UUID, because the signature is a
	// new decision of the operator.
	Signed time.Time `json:"signed"`
	// Expires is the end of the validity, at most a year after Signed.
	Expires time.Time `json:"expires"`
}

// Identity identifies a machine by values of its firmware (SMBIOS type 1). At least one field is
// set. A machine matches if its inventory states the same value for each field that is set.
type Identity struct {
	Serial string `json:"serial,omitempty"`
	UUID   string `json:"uuid,omitempty"` // lowercase
}

// String returns the identity for a message.
func (i Identity) String() string {
	switch {
	case i.UUID == "":
		return "serial number " + i.Serial
	case i.Serial == "":
		return "UUID " + i.UUID
	}
	return "serial number " + i.Serial + ", UUID " + i.UUID
}

// placeholders are the serial numbers, in lower case, of machines whose manufacturer did not
// replace the default text of the firmware.
var placeholders = []string{
	"to be filled by o.e.m.", "default string", "system serial number", "not specified", "not applicable", "not available", "none", "n/a", "na", "unknown",
	"oem", "serial", "chassis serial number", "invalid", "0123456789", "123456789", "1234567890",
}

// check returns an error for an identity that is malformed or that many machines have.
func (i Identity) check() error {
	for _, text := range []string{i.Serial, i.UUID} {
		if len(text) > maxIdentity || strings.TrimSpace(text) != text || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			return fmt.Errorf("%.70q is not a text of at most %d printable ASCII characters without blanks around it", text, maxIdentity)
		}
	}
	switch {
	case i == Identity{}:
		return errors.New("a machine has neither a serial number nor a UUID")
	case i.Serial != "" && (slices.Contains(placeholders, strings.ToLower(i.Serial)) || strings.Trim(i.Serial, "0.-x ") == ""):
		return fmt.Errorf("the serial number %q is a placeholder, which many machines have; use the UUID", i.Serial)
	case i.UUID != strings.ToLower(i.UUID):
		return fmt.Errorf("the UUID %q has capital letters; write it in lowercase", i.UUID)
	case i.UUID != "" && (strings.Trim(i.UUID, "0-") == "" || strings.Trim(i.UUID, "f-") == ""):
		return fmt.Errorf("the UUID %q is a placeholder, which many machines have; use the serial number", i.UUID)
	}
	return nil
}

// Of reports whether the identity is that of a machine that states this serial number and this
// UUID.
func (i Identity) Of(serial, uuid string) bool {
	return (i.Serial == "" || i.Serial == serial) && (i.UUID == "" || i.UUID == strings.ToLower(uuid)) && i != Identity{}
}

// Find returns the first identity of the rule that matches a machine (Of).
func (r Rule) Find(serial, uuid string) (Identity, bool) {
	at := slices.IndexFunc(r.Machines, func(i Identity) bool { return i.Of(serial, uuid) })
	if at < 0 {
		return Identity{}, false
	}
	return r.Machines[at], true
}

// check returns an error if a value of the rule is outside its limits, or the rule lists a serial
// number or UUID twice.
func (r Rule) check() error {
	switch {
	case len(r.Machines) == 0 || len(r.Machines) > maxMachines:
		return fmt.Errorf("rule: has %d machines; 1 to %d are allowed", len(r.Machines), maxMachines)
	case r.Maximum < 1 || r.Maximum > len(r.Machines):
		return fmt.Errorf("rule: the maximum is %d; 1 to %d are allowed, the number of its machines", r.Maximum, len(r.Machines))
	case len(r.Match) > maxMatch:
		return fmt.Errorf("rule: the expression has %d characters; at most %d are allowed", len(r.Match), maxMatch)
	case !r.Expires.After(r.Signed) || r.Expires.Sub(r.Signed) > maxLife:
		return errors.New("rule: the validity is out of range; at most a year is allowed")
	}
	seen := map[string]bool{}
	for _, m := range r.Machines {
		if err := m.check(); err != nil {
			return fmt.Errorf("rule: %w", err)
		}
		for _, value := range []string{"serial number " + m.Serial, "UUID " + m.UUID} {
			if !strings.HasSuffix(value, " ") && seen[value] {
				return fmt.Errorf("rule: the %s is listed twice", value)
			}
			seen[value] = true
		}
	}
	return nil
}

// SignedRule is a rule with its signature: the two fields of OrlopApprovalRule.spec.
type SignedRule struct {
	Text []byte `json:"text"` // a Rule in YAML
	// Signature is PEM: the signature, and the certificate of the operator.
	Signature []byte `json:"signature"`
}

func (s SignedRule) checkSize() error {
	if len(s.Text) == 0 || len(s.Text) > MaxRule {
		return fmt.Errorf("rule: has %d bytes; 1 to %d are allowed", len(s.Text), MaxRule)
	}
	return nil
}

// digest returns the value that the operator signs.
func (s SignedRule) digest() []byte {
	text := sha256.Sum256(s.Text)
	sum := sha256.Sum256(append([]byte(ruleKind.context), text[:]...))
	return sum[:]
}

// ID returns the ID of the rule, a hash of its text: 64 hexadecimal digits.
func (s SignedRule) ID() string { return hex.EncodeToString(s.digest()) }

// SignRule signs a rule with the certificate of an operator. now is the time of the signature.
func SignRule(r Rule, by *pki.Leaf, now time.Time) (SignedRule, error) {
	r.Signed = now.UTC().Truncate(time.Second)
	r.Expires = r.Expires.UTC().Truncate(time.Second)
	if err := r.check(); err != nil {
		return SignedRule{}, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text) // JSON is YAML
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return SignedRule{}, fmt.Errorf("rule: cannot encode: %w", err)
	}
	s := SignedRule{Text: text.Bytes()}
	err := s.checkSize()
	if err != nil {
		return SignedRule{}, err
	}
	s.Signature, err = ruleKind.sign(s.digest(), nil, by, now, r.Expires)
	return s, err
}

// Verify returns the rule and the certificate of its signer. It fails unless the certificate has
// the role admin and is from one of the operators' CAs, the signature is valid, and now is in the
// validity of the rule.
func (s SignedRule) Verify(operators []*x509.Certificate, now time.Time) (Rule, *x509.Certificate, error) {
	block, by, err := ruleKind.open(s.Signature)
	if err == nil {
		err = s.checkSize()
	}
	if err == nil { // The signature is verified before the text is parsed.
		err = ruleKind.verify(s.digest(), block.Bytes, by, operators, now)
	}
	if err != nil {
		return Rule{}, nil, err
	}
	r, err := s.Parse()
	if err == nil {
		err = ruleKind.checkExpiry(r.Expires, now)
	}
	if err != nil {
		return Rule{}, nil, err
	}
	// With a time of signature in the future, the rule could approve several machines with the same
	// serial number, because each approval would be older than the signature.
	if now.Before(r.Signed) {
		return Rule{}, nil, fmt.Errorf("rule: was signed at %s, later than the time of this machine; compare the clocks of the operator and of the machine", r.Signed.UTC().Format(time.RFC3339))
	}
	return r, by, nil
}

// Parse returns the rule. It does not verify the signature.
func (s SignedRule) Parse() (Rule, error) {
	if err := s.checkSize(); err != nil {
		return Rule{}, err
	}
	var r Rule
	if err := strictyaml.Decode(s.Text, &r); err != nil {
		return Rule{}, fmt.Errorf("rule: cannot parse: %w", err)
	}
	return r, r.check()
}

package claim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

const (
	// MaxClaims bounds the number of claims, and the number of removals, in a list: the cluster has
	// at most 128 objects of waiting machines, and a site does not remove more machines at a time.
	MaxClaims = 128
	// MaxTemplates and MaxRules bound the number of templates and of rules in a list.
	MaxTemplates, MaxRules = 16, 16
	// MaxList is the maximum size of a list in bytes. The list holds documents and signatures in
	// base 64.
	MaxList = 2 << 20
	// life is the time for which a list is valid. The controllers that have the leadership write a
	// new list every few seconds. After they lose the leadership, their last list expires.
	life = time.Minute
)

// List is the message of the controllers that have the leadership to machined on the same machine.
// It is a request: machined checks each claim by the signatures of its template and of its rule.
type List struct {
	Written   time.Time         `json:"written"`
	Templates map[string]Signed `json:"templates"`
	// Rules are the rules of the claims, by the names of their objects.
	Rules  map[string]SignedRule `json:"rules,omitempty"`
	Claims []Claim               `json:"claims"`
	// Removals are claimed machines that leave the cluster.
	Removals []Member `json:"removals"`
}

// Member is a claimed machine.
type Member struct {
	Name string `json:"name"`
	Key  string `json:"key"` // fingerprint of its key (pki.KeyFingerprint)
}

// NamedByKey reports whether the name is derived from the key, as Name derives it for a claimed
// machine. It returns false for a name that an operator chose.
func (m Member) NamedByKey() bool {
	_, digits, _ := strings.Cut(m.Key, ":")
	i := strings.LastIndexByte(m.Name, '-')
	return i > 0 && len(digits) >= nameDigits && m.Name == Name(m.Name[:i], m.Key)
}

// Claim is a machine that becomes a worker.
type Claim struct {
	Member
	Template string `json:"template"` // a key of List.Templates
	// Rule is the name of the rule that approves the machine, a key of List.Rules. It is empty if
	// an operator has approved the fingerprint at the API server instead.
	Rule string `json:"rule,omitempty"`
}

// Encode returns the list as JSON.
func (l List) Encode() ([]byte, error) {
	text, err := json.Marshal(l)
	if err == nil && len(text) > MaxList {
		err = fmt.Errorf("has %d bytes; at most %d are allowed", len(text), MaxList)
	}
	if err != nil {
		return nil, fmt.Errorf("list of claims: cannot encode: %w", err)
	}
	return text, nil
}

// ParseList parses a list. A list that is too old, or from the future, is empty.
func ParseList(text []byte, now time.Time) (List, error) {
	if len(text) > MaxList {
		return List{}, fmt.Errorf("list of claims: has more than %d bytes", MaxList)
	}
	var l List
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return List{}, fmt.Errorf("list of claims: cannot decode: %w", err)
	}
	if len(l.Claims) > MaxClaims || len(l.Removals) > MaxClaims || len(l.Templates) > MaxTemplates || len(l.Rules) > MaxRules {
		return List{}, fmt.Errorf("list of claims: has more than %d claims or removals, %d templates or %d rules", MaxClaims, MaxTemplates, MaxRules)
	}
	if age := now.Sub(l.Written); age > life || age < -life {
		return List{}, nil
	}
	return l, nil
}

// Of returns the claim of the machine with a key fingerprint.
func (l List) Of(key string) (Claim, bool) {
	for _, c := range l.Claims {
		if c.Key == key {
			return c, true
		}
	}
	return Claim{}, false
}

package approval

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// The limits of a request.
const (
	// MaxValidity is the longest time from NotBefore to Expires of a request.
	MaxValidity = 24 * time.Hour
	// MaxText is the maximum size of the text of a request, in bytes. Sealed policies, the largest
	// content, have at most 128 KiB.
	MaxText     = 512 << 10
	maxMachines = 128
	maxContent  = 256
	maxName     = 64
	nonceSize   = 16 // bytes
)

// Request describes a call on one or several machines, for the approvers of the call.
type Request struct {
	// Call is the full name of the method: "/orlop.v1alpha1.Machine/Reset".
	Call string `json:"call"`
	// Machines are the machines on which the call may be made, once on each.
	Machines []Machine `json:"machines"`
	// Content is the whole content of the call: values as text, by the names of their fields. It is
	// the result of ContentOf or, for a change of the configuration, the new values of the guarded
	// fields.
	Content   map[string]string `json:"content"`
	NotBefore time.Time         `json:"notBefore"`
	Expires   time.Time         `json:"expires"`
	// Nonce distinguishes the request from all others: 32 hexadecimal digits.
	Nonce string `json:"nonce"`
}

// Machine is a machine of a request.
type Machine struct {
	// Name is for the readers of the request. The machine compares only Key.
	Name string `json:"name,omitempty"`
	Key  string `json:"key"` // fingerprint of the machine's key (pki.Fingerprint)
}

// NewRequest returns a request that is valid from a time for the duration ttl. It fails if a value
// is outside its limits.
func NewRequest(call string, machines []Machine, content map[string]string, from time.Time, ttl time.Duration) (Request, error) {
	nonce := make([]byte, nonceSize)
	if _, err := rand.Read(nonce); err != nil {
		return Request{}, fmt.Errorf("approval: cannot make a nonce: %w", err)
	}
	from = from.UTC().Truncate(time.Second)
	r := Request{Call: call, Machines: machines, Content: content, NotBefore: from, Expires: from.Add(ttl).Truncate(time.Second), Nonce: hex.EncodeToString(nonce)}
	return r, r.check()
}

// check returns an error if a value of the request is outside its limits.
func (r Request) check() error {
	switch {
	case r.Call == "" || len(r.Call) > 2*maxName || !printable(r.Call):
		return fmt.Errorf("approval: %.80q is no name of a method", r.Call)
	case len(r.Machines) == 0 || len(r.Machines) > maxMachines:
		return fmt.Errorf("approval: has %d machines; 1 to %d are allowed", len(r.Machines), maxMachines)
	case len(r.Content) > maxContent:
		return fmt.Errorf("approval: has %d fields; at most %d are allowed", len(r.Content), maxContent)
	case !r.Expires.After(r.NotBefore) || r.Expires.Sub(r.NotBefore) > MaxValidity:
		return fmt.Errorf("approval: is valid from %s to %s; at most %v are allowed", stamp(r.NotBefore), stamp(r.Expires), MaxValidity)
	}
	if n, err := hex.DecodeString(r.Nonce); err != nil || len(n) != nonceSize || strings.ToLower(r.Nonce) != r.Nonce {
		return fmt.Errorf("approval: the nonce %.80q is not %d lower-case hexadecimal digits", r.Nonce, 2*nonceSize)
	}
	seen := map[string]bool{}
	for _, m := range r.Machines {
		if canonical, err := pki.ParseFingerprint(m.Key); err != nil || canonical != m.Key {
			return fmt.Errorf("approval: the key %.80q of a machine is not sha256: and 64 lower-case hexadecimal digits", m.Key)
		}
		if len(m.Name) > maxName || !printable(m.Name) {
			return fmt.Errorf("approval: %.80q is no name of a machine", m.Name)
		}
		if seen[m.Key] {
			return fmt.Errorf("approval: the machine %s is listed twice", m.Key)
		}
		seen[m.Key] = true
	}
	for name, value := range r.Content {
		if name == "" || len(name) > 4*maxName || !printable(name) || !utf8.ValidString(value) {
			return fmt.Errorf("approval: the field %.80q is no text", name)
		}
	}
	return nil
}

// printable reports whether a text has only visible ASCII characters and blanks.
func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// encode returns the text of the request: JSON, with a line for each field.
func (r Request) encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return nil, fmt.Errorf("approval: cannot encode: %w", err)
	}
	if text.Len() > MaxText {
		return nil, fmt.Errorf("approval: has %d bytes; at most %d are allowed", text.Len(), MaxText)
	}
	return text.Bytes(), nil
}

// parseRequest returns the request in a text. It fails for an unknown or repeated field, and for a
// value outside its limits.
func parseRequest(text []byte) (r Request, err error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return r, errors.New("approval: the file has no request")
	}
	if err := strictyaml.Decode(text, &r); err != nil {
		return Request{}, fmt.Errorf("approval: cannot parse: %w", err)
	}
	return r, r.check()
}

// Fields returns the names of the fields of the content, sorted.
func (r Request) Fields() []string { return slices.Sorted(maps.Keys(r.Content)) }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

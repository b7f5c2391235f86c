package credentials

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// State describes a certificate on the machine.
type State struct {
	File    string `json:"file"`
	Subject string `json:"subject"` // in the form of RFC 2253
	Issuer  string `json:"issuer"`
	// identifier of the signing key (RFC 5280, 4.2.1.1), hexadecimal; names of CAs may be equal
	IssuerKey string    `json:"issuerKey,omitempty"`
	Serial    string    `json:"serial"` // hexadecimal
	Authority bool      `json:"authority,omitempty"`
	Expires   time.Time `json:"expires"`
	// Renews is the time of the next renewal; missing for a CA, which comes from the configuration
	// or the image.
	Renews time.Time `json:"renews,omitzero"`
	// the reason why the file is unreadable; then only File is set
	Problem string `json:"problem,omitempty"`
}

// Dirs returns the directories with the certificates of the machine's processes.
func Dirs() []string {
	return []string{paths.ApidDir, paths.KubeNode, paths.KubeAPI, paths.KubeControllers, paths.MetricsdDir}
}

// List returns the certificates in some directories, sorted by expiry. A missing directory contains
// none.
func List(dirs ...string) ([]State, error) {
	var list []State
	for _, dir := range dirs {
		for _, pattern := range []string{"*.crt", "*.pem"} {
			names, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return nil, fmt.Errorf("certificates: cannot list: %w", err)
			}
			for _, name := range names {
				list = append(list, statesOf(name)...)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b State) int { return cmp.Or(a.Expires.Compare(b.Expires), cmp.Compare(a.File, b.File)) })
	return list, nil
}

// statesOf returns the certificates in a file, which may be empty.
func statesOf(name string) []State {
	text, err := os.ReadFile(name)
	if err != nil {
		return []State{{File: name, Problem: err.Error()}}
	}
	if len(text) == 0 {
		return nil
	}
	certs, err := pki.ParseCerts(text)
	if err != nil {
		return []State{{File: name, Problem: err.Error()}}
	}
	var list []State
	for _, c := range certs {
		s := State{File: name, Subject: c.Subject.String(), Issuer: c.Issuer.String(), IssuerKey: hex.EncodeToString(c.AuthorityKeyId), Serial: pki.Serial(c), Authority: c.IsCA, Expires: c.NotAfter}
		if !c.IsCA {
			s.Renews = pki.RenewAt(c)
		}
		list = append(list, s)
	}
	return list
}

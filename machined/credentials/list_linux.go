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

// State is a certificate that lies on the machine.
type State struct {
	File    string `json:"file"`
	Subject string `json:"subject"` // as RFC 2253 writes it
	Issuer  string `json:"issuer"`
	// identifier of the key that signed it (RFC 5280, 4.2.1.1), hexadecimal: names may be the same
	IssuerKey string    `json:"issuerKey,omitempty"`
	Serial    string    `json:"serial"` // hexadecimal
	Authority bool      `json:"authority,omitempty"`
	Expires   time.Time `json:"expires"`
	// Renews is when the machine makes it anew; missing for an authority, which comes from the
	// configuration or the image.
	Renews time.Time `json:"renews,omitzero"`
	// why it cannot be read; nothing but File is known then
	Problem string `json:"problem,omitempty"`
}

// Dirs are those in which the machine's processes find their certificates.
func Dirs() []string {
	return []string{paths.ApidDir, paths.KubeNode, paths.KubeAPI, paths.KubeControllers}
}

// List reads the certificates in some folders, those first that expire first. A folder that is not
// there holds none.
func List(folders ...string) ([]State, error) {
	var list []State
	for _, folder := range folders {
		for _, pattern := range []string{"*.crt", "*.pem"} {
			names, err := filepath.Glob(filepath.Join(folder, pattern))
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

// statesOf are the certificates in a file, which may be empty.
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

package rotation

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/pkg/pki"
)

// holding is the part of a machine's configuration about a single CA.
type holding struct {
	// own is the CA that issues certificates; nil if the machine does not use this CA.
	own      *x509.Certificate
	key      bool // the machine has the key of own
	accepted []*x509.Certificate
}

func (h holding) trusts(c *x509.Certificate) bool {
	return h.own.Equal(c) || slices.ContainsFunc(h.accepted, c.Equal)
}

// state returns the state of the machine in the rotation to the CA next.
func (h holding) state(next *x509.Certificate) state {
	return stateOf((*x509.Certificate).Equal, h.own, h.accepted, next)
}

// step returns the CAs of the machine one state later. All trusted CAs stay trusted until the last
// step, including the CAs of an abandoned rotation.
func (h holding) step(next *x509.Certificate) holding {
	h.own, h.accepted = stepOf((*x509.Certificate).Equal, h.own, h.accepted, next)
	return h
}

// related returns an error if the machines belong to different clusters, or if the file of secrets
// belongs to another cluster. known is the CA in the file, or nil if the file has none.
func related(names []string, all []holding, known, next *x509.Certificate) error {
	with := -1 // the last machine that uses the CA
	fits := known == nil
	for i, h := range all {
		if h.own == nil {
			continue
		}
		fits = fits || h.trusts(known) || h.own.Equal(next)
		if with >= 0 && !h.trusts(all[with].own) && !all[with].trusts(h.own) {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("machines %s and %s have different CAs, and neither trusts the other's; nothing was changed", names[with], names[i]), Hint: "name the machines of one cluster"}
		}
		with = i
	}
	switch {
	case with < 0:
		return &exit.Error{Code: exit.Usage, Err: errors.New("no machine has such a CA in its configuration (Cluster.spec.pki); nothing was changed"), Hint: "`orlopctl gen secrets --client-ca` makes a missing client CA"}
	case !fits:
		return &exit.Error{Code: exit.Usage, Err: errors.New("the CA in the file of secrets is unknown to the machines: the file belongs to another cluster, or was not updated when the CA was replaced; nothing was changed"), Hint: "name the cluster's own file with --secrets"}
	}
	return nil
}

// readHolding reads the CA with this name from the documents of a machine. The documents contain no
// secrets.
func readHolding(documents []byte, name string) (h holding, err error) {
	for dec := yaml.NewDecoder(bytes.NewReader(documents)); ; {
		var doc struct {
			Kind string `yaml:"kind"`
			Spec struct {
				PKI map[string]yaml.Node `yaml:"pki"`
			} `yaml:"spec"`
		}
		if err = dec.Decode(&doc); errors.Is(err, io.EOF) {
			return h, nil
		}
		if err == nil && doc.Kind == "Cluster" {
			var pair struct {
				Cert string `yaml:"cert"`
				Key  string `yaml:"key"`
			}
			var accepted map[string][]string
			own, others := doc.Spec.PKI[name], doc.Spec.PKI["accepted"]
			err = errors.Join(own.Decode(&pair), others.Decode(&accepted))
			h.key = pair.Key != ""
			if err == nil && pair.Cert != "" {
				h.own, err = pki.ParseCert([]byte(pair.Cert))
			}
			if text := strings.Join(accepted[name], "\n"); err == nil && text != "" {
				h.accepted, err = pki.ParseCerts([]byte(text))
			}
		}
		if err != nil {
			return h, fmt.Errorf("configuration: cannot read the machine's answer: %w", err)
		}
	}
}

// patch returns the patch that changes the CAs of a machine from `was` to h. key is the key of
// h.own. The patch contains the key only if h.own is new for the machine and the machine has the
// key of its present CA.
func (h holding) patch(name string, was holding, key string) ([]byte, error) {
	authorities := map[string]any{}
	if !h.own.Equal(was.own) {
		pair := map[string]string{"cert": string(pki.EncodeCert(h.own))}
		if h.key {
			pair["key"] = key
		}
		authorities[name] = pair
	}
	var list []string // a null list removes the field
	for _, c := range h.accepted {
		list = append(list, string(pki.EncodeCert(c)))
	}
	authorities["accepted"] = map[string][]string{name: list}
	return sigsyaml.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{"pki": authorities}})
}

// shownCertificate is a certificate of a machine: an element of topic "certificates".
type shownCertificate struct {
	File      string `json:"file"`
	IssuerKey string `json:"issuerKey"`
	Serial    string `json:"serial"`
	Authority bool   `json:"authority"`
}

// pendingFile describes the first file of a machine that does not correspond to h yet. It returns
// "" if all files correspond.
func pendingFile(h holding, next *x509.Certificate, files []shownCertificate) string {
	if !slices.ContainsFunc(files, func(f shownCertificate) bool { return f.Authority && f.Serial == pki.Serial(next) }) {
		return "no file holds the new CA yet"
	}
	if !h.own.Equal(next) {
		return ""
	}
	for _, f := range files {
		for _, old := range h.accepted {
			// Without a key identifier, two CAs cannot be distinguished.
			if key := hex.EncodeToString(old.SubjectKeyId); !f.Authority && key != "" && f.IssuerKey == key {
				return f.File + " is still issued by the previous CA"
			}
		}
	}
	return ""
}

package main

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

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// How one of a cluster's CAs is replaced while everybody works
// (docs/decisions/0027-ca-rotation.md). Each machine goes through four states, and no machine is
// more than one before another:
//
// 	before     accept →  accepted   issue →  issues     drop →  alone
// 	old issues           old issues          new issues         new issues
// 	                     new accepted        old accepted
//
// Which state a machine is in stands in its configuration, and which CA is the new one in the file
// of secrets: nothing else has to be remembered, so whoever is stopped begins where he was.

// state is how far a machine is.
type state int

const (
	before state = iota
	accepted
	issues
	alone
)

// names of the steps that lead to the states.
var stepNames = []string{accepted: "accept", issues: "issue", alone: "drop"}

// holding is what a machine's configuration says of one authority.
type holding struct {
	// that issues; nil: the machine has nothing to do with this authority
	own      *x509.Certificate
	key      bool // it has the key too
	accepted []*x509.Certificate
}

// plane is a machine's part in its cluster's control plane, as it says itself.
type plane struct {
	machine  string   // its name
	controls bool     // it is a control-plane machine
	members  []string // the control-plane machines that its configuration names
}

// readPlane reads it from a machine's documents, but for its name.
func readPlane(documents []byte) (p plane, err error) {
	for dec := yaml.NewDecoder(bytes.NewReader(documents)); ; {
		var doc struct {
			Kind string `yaml:"kind"`
			Spec struct {
				Role          config.Role `yaml:"role"`
				ControlPlanes []string    `yaml:"controlPlanes"`
			} `yaml:"spec"`
		}
		switch err := dec.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return p, nil
		case err != nil:
			return p, fmt.Errorf("configuration: cannot read the machine's answer: %w", err)
		case doc.Kind == "Machine":
			p.controls = doc.Spec.Role == config.RoleControlPlane
		case doc.Kind == "Cluster":
			p.members = doc.Spec.ControlPlanes
		}
	}
}

// wholePlane refuses what is not all of a cluster's control plane, and counts its machines: one
// that did not learn of the next step in time would not know the others any more, or could not read
// what they write.
func wholePlane(names []string, all []plane) (count int, err error) {
	machines := map[string]bool{} // one may be named by two addresses
	for _, p := range all {
		if p.controls {
			machines[p.machine] = true
		}
	}
	for i, p := range all {
		if p.controls && len(p.members) > len(machines) {
			return 0, &exitError{code: exitUsage, err: fmt.Errorf("machine %s: its cluster has %d control-plane machines (%s), and %d of those that were named have a control plane", names[i], len(p.members), strings.Join(p.members, ", "), len(machines)), hint: "name all of them with -n"}
		}
	}
	return len(machines), nil
}

func (h holding) believes(c *x509.Certificate) bool {
	return h.own.Equal(c) || slices.ContainsFunc(h.accepted, c.Equal)
}

// state is how far the machine is with the next CA.
func (h holding) state(next *x509.Certificate) state {
	return stateOf((*x509.Certificate).Equal, h.own, h.accepted, next)
}

// step is what the machine holds one state later. Whoever was believed before is believed until the
// last step, others too, who may be left of a rotation that was begun with another new CA.
func (h holding) step(next *x509.Certificate) holding {
	h.own, h.accepted = stepOf((*x509.Certificate).Equal, h.own, h.accepted, next)
	return h
}

// stateOf is how far a machine is with the next one, by the one that it has for its own and those
// that it accepts beside it.
func stateOf[T any](same func(T, T) bool, own T, beside []T, next T) state {
	switch isNext := func(o T) bool { return same(o, next) }; {
	case !isNext(own) && !slices.ContainsFunc(beside, isNext):
		return before
	case !isNext(own):
		return accepted
	case len(beside) > 0:
		return issues
	}
	return alone
}

// stepOf is what the machine has one state later.
func stepOf[T any](same func(T, T) bool, own T, beside []T, next T) (T, []T) {
	switch stateOf(same, own, beside, next) {
	case before:
		return own, append(slices.Clone(beside), next)
	case accepted:
		others := slices.DeleteFunc(slices.Clone(beside), func(o T) bool { return same(o, next) })
		return next, append([]T{own}, others...)
	}
	return own, nil
}

// related refuses machines that are not of one cluster, and a file of secrets that is another
// cluster's. known is the CA in the file; it may be nil.
func related(names []string, all []holding, known, next *x509.Certificate) error {
	with := -1 // the last machine that has the authority
	fits := known == nil
	for i, h := range all {
		if h.own == nil {
			continue
		}
		fits = fits || h.believes(known) || h.own.Equal(next)
		if with >= 0 && !h.believes(all[with].own) && !all[with].believes(h.own) {
			return &exitError{code: exitUsage, err: fmt.Errorf("machines %s and %s have different CAs, and neither believes the other's; nothing was changed", names[with], names[i]), hint: "name the machines of one cluster"}
		}
		with = i
	}
	switch {
	case with < 0:
		return &exitError{code: exitUsage, err: errors.New("no machine has such a CA in its configuration (Cluster.spec.pki); nothing was changed"), hint: "`orlopctl gen secrets --client-ca` makes a client CA where there is none"}
	case !fits:
		return &exitError{code: exitUsage, err: errors.New("the CA in the file of secrets is unknown to the machines: it is another cluster's, or was replaced without the file; nothing was changed"), hint: "name the cluster's own file with --secrets"}
	}
	return nil
}

// readHolding finds an authority in a machine's configuration, from which the secrets were taken
// out.
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

// patch is what changes in a machine's configuration when it comes to hold h. key is that of the CA
// that issues then, and is said only when that is another one.
func (h holding) patch(name string, was holding, key string) ([]byte, error) {
	authorities := map[string]any{}
	if !h.own.Equal(was.own) {
		pair := map[string]string{"cert": string(pki.EncodeCert(h.own))}
		if h.key {
			pair["key"] = key
		}
		authorities[name] = pair
	}
	var list []string // null removes it
	for _, c := range h.accepted {
		list = append(list, string(pki.EncodeCert(c)))
	}
	authorities["accepted"] = map[string][]string{name: list}
	return sigsyaml.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{"pki": authorities}})
}

// shownCertificate is a certificate that lies on a machine: an entry of the topic "certificates".
type shownCertificate struct {
	File      string `json:"file"`
	IssuerKey string `json:"issuerKey"`
	Serial    string `json:"serial"`
	Authority bool   `json:"authority"`
}

// unsettled is what the files of a machine that holds h do not show yet, or nothing.
func unsettled(h holding, next *x509.Certificate, files []shownCertificate) string {
	if !slices.ContainsFunc(files, func(f shownCertificate) bool { return f.Authority && f.Serial == pki.Serial(next) }) {
		return "no file holds the new CA yet"
	}
	if !h.own.Equal(next) {
		return ""
	}
	for _, f := range files {
		for _, old := range h.accepted {
			// An authority that does not say which key is its own cannot be told from others.
			if key := hex.EncodeToString(old.SubjectKeyId); !f.Authority && key != "" && f.IssuerKey == key {
				return f.File + " is still of the CA before"
			}
		}
	}
	return ""
}

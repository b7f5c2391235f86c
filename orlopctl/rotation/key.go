package rotation

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/exit"
)

// The rotation of the encryption key for Secrets (docs/decisions/0067-key-rotation.md). It has the
// same states as the rotation of a CA (ca.go), but identifies keys by their names, because no
// machine returns a key.

// encryptionKeys holds the names of a control-plane machine's encryption keys. The zero value is
// that of a worker.
type encryptionKeys struct {
	own      string   // encrypts
	accepted []string // also decrypt
	role     machineRole
}

// readEncryptionKeys reads the key names from topic "configuration", and the membership of the
// control plane from the documents without secrets.
func readEncryptionKeys(topic, documents []byte) (s encryptionKeys, err error) {
	var shown struct {
		EncryptionKeys []string `json:"encryptionKeys"`
	}
	if err := json.Unmarshal(topic, &shown); err != nil {
		return s, fmt.Errorf("configuration: cannot read the machine's answer: %w", err)
	}
	if len(shown.EncryptionKeys) > 0 {
		s.own, s.accepted = shown.EncryptionKeys[0], shown.EncryptionKeys[1:]
	}
	s.role, err = readRole(documents)
	return s, err
}

func sameName(a, b string) bool { return a == b }

// state returns the state of the machine for the next key.
func (s encryptionKeys) state(next string) state { return stateOf(sameName, s.own, s.accepted, next) }

// step returns the keys of the machine one state later. Keys that decrypt are retained until the
// last step.
func (s encryptionKeys) step(next string) encryptionKeys {
	s.own, s.accepted = stepOf(sameName, s.own, s.accepted, next)
	return s
}

// patch returns the patch that gives the machine the keys of s. keys maps the known names to keys.
func (s encryptionKeys) patch(keys map[string]string) ([]byte, error) {
	var list []string // null removes it
	for _, name := range append([]string{s.own}, s.accepted...) {
		if keys[name] == "" {
			return nil, exit.Usagef("the machine has the encryption key %s, which is not in the file of secrets; add it there to formerEncryptionKeys, or remove it from the machine (acceptedEncryptionKeys)", name)
		}
	}
	for _, name := range s.accepted {
		list = append(list, keys[name])
	}
	return sigsyaml.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{"secretsEncryptionKey": keys[s.own], "acceptedEncryptionKeys": list}})
}

// checkEncryptionKeys rejects an incomplete control plane, and a file of secrets of another
// cluster. own is the key in the file.
func checkEncryptionKeys(names []string, all []encryptionKeys, own, next string) error {
	roles := make([]machineRole, len(all))
	for i, s := range all {
		roles[i] = s.role
		if s.own != "" && s.own != own && s.own != next && !slices.Contains(s.accepted, own) {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("machine %s: does not have the encryption key in the file of secrets: the file is another cluster's, or the key was replaced without the file", names[i]), Hint: "name the cluster's own file with --secrets"}
		}
	}
	machines, err := checkRoles(names, roles)
	if err != nil {
		return err
	}
	if machines == 0 {
		return &exit.Error{Code: exit.Usage, Err: errors.New("no machine has an encryption key in its configuration (Cluster.spec.secretsEncryptionKey)"), Hint: "name the control-plane machines with -n"}
	}
	return nil
}

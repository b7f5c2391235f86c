package rotation

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/exit"
)

// This file computes the steps of a rotation of the encryption key for Secrets
// (docs/decisions/0067-key-rotation.md). The states are the same as in the rotation of a CA
// (ca.go). Names identify the keys, because no machine returns a key.

// encryptionKeys holds the names of a control-plane machine's encryption keys. For a worker, own
// and accepted are empty.
type encryptionKeys struct {
	own      string   // the key that encrypts
	accepted []string // keys that only decrypt
	role     machineRole
}

// readEncryptionKeys reads the key names from topic "configuration" of a machine, and the role from
// the documents of the machine. The documents contain no secrets.
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

// state returns the state of the machine in the rotation to key next.
func (s encryptionKeys) state(next string) state { return stateOf(sameName, s.own, s.accepted, next) }

// step returns the keys of the machine one state later. It retains all keys that decrypt until the
// last step.
func (s encryptionKeys) step(next string) encryptionKeys {
	s.own, s.accepted = stepOf(sameName, s.own, s.accepted, next)
	return s
}

// patch returns the patch that gives the machine the keys of s. keys maps names to keys. It returns
// an error if keys lacks a key of the machine.
func (s encryptionKeys) patch(keys map[string]string) ([]byte, error) {
	var list []string // a null list removes the field
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

// checkEncryptionKeys returns an error if control-plane machines are missing, or if the file of
// secrets belongs to another cluster. own is the name of the key in the file.
func checkEncryptionKeys(names []string, all []encryptionKeys, own, next string) error {
	roles := make([]machineRole, len(all))
	for i, s := range all {
		roles[i] = s.role
		if s.own != "" && s.own != own && s.own != next && !slices.Contains(s.accepted, own) {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("machine %s: does not have the encryption key in the file of secrets: the file belongs to another cluster, or was not updated when the key was replaced", names[i]), Hint: "name the cluster's own file with --secrets"}
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

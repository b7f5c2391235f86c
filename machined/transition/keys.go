package transition

import (
	"encoding/json"
	"slices"

	"github.com/orlop-os/orlop/pkg/config"
)

// checkEncryptionKeys rejects a new encryption key that the previous configuration did not accept:
// other machines may not accept it either. It also rejects a configuration that does not accept the
// previous key any more, with which Secrets are encrypted. before and after are the
// previous and the next Cluster document.
func checkEncryptionKeys(before, after config.ClusterSpec) Problems {
	oldKey, newKey := before.SecretsEncryptionKey, after.SecretsEncryptionKey
	if oldKey.IsZero() || oldKey.Equal(newKey.Secret) || hasKey(before.AcceptedEncryptionKeys, newKey) && hasKey(after.AcceptedEncryptionKeys, oldKey) {
		return nil
	}
	return problem("Cluster.spec.secretsEncryptionKey",
		"cannot change in one step to a key that was not accepted before, or from a key that is not accepted afterwards: Secrets would be unreadable",
		"`orlopctl trust rotate-key` does it step by step (Cluster.spec.acceptedEncryptionKeys)")
}

// otherKeys reports whether the encryption keys of a cluster machine would change, or their order.
func otherKeys(before, next *config.Config) bool {
	return before != nil && before.Cluster != nil && next.Cluster != nil &&
		!slices.EqualFunc(before.Cluster.Spec.EncryptionKeys(), next.Cluster.Spec.EncryptionKeys(), func(a, b config.EncryptionKey) bool { return a.Equal(b.Secret) })
}

// WithPresentKeys returns an earlier configuration with the present encryption keys, because the
// stored Secrets are encrypted with the present keys. An unreadable configuration is returned
// unchanged; the caller parses it and reports the problem.
func WithPresentKeys(earlier, present []byte) ([]byte, error) {
	then, problems := config.Parse("", earlier)
	now, others := config.Parse("", present)
	if len(problems)+len(others) > 0 || !otherKeys(then, now) {
		return earlier, nil
	}
	var accepted []string
	for _, k := range now.Cluster.Spec.AcceptedEncryptionKeys {
		accepted = append(accepted, k.Reveal())
	}
	keys, err := json.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{
		"secretsEncryptionKey": now.Cluster.Spec.SecretsEncryptionKey.Reveal(), "acceptedEncryptionKeys": accepted,
	}})
	if err != nil {
		return nil, err
	}
	return config.Merge(earlier, keys)
}

// DroppedKeys returns the names of the encryption keys that the next configuration drops.
func DroppedKeys(before, next *config.Config) (dropped []string) {
	if before == nil || before.Cluster == nil || next.Cluster == nil {
		return nil // a machine without data; CheckFixed rejects the removal of a cluster
	}
	for _, k := range before.Cluster.Spec.EncryptionKeys() {
		if !hasKey(next.Cluster.Spec.EncryptionKeys(), k) {
			dropped = append(dropped, k.Name())
		}
	}
	return dropped
}

func hasKey(list []config.EncryptionKey, k config.EncryptionKey) bool {
	return slices.ContainsFunc(list, func(o config.EncryptionKey) bool { return o.Equal(k.Secret) })
}

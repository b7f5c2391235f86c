package transition

import (
	"encoding/json"
	"slices"

	"github.com/orlop-os/orlop/pkg/config"
)

// checkEncryptionKeys rejects a change of the encryption key in two cases. In the first case, the
// previous configuration did not accept the new key, so other machines may not accept it yet. In
// the second case, the next configuration does not accept the previous key, which still encrypts
// Secrets. before and after are the previous and the next Cluster document.
func checkEncryptionKeys(before, after config.ClusterSpec) Problems {
	oldKey, newKey := before.SecretsEncryptionKey, after.SecretsEncryptionKey
	if oldKey.IsZero() || oldKey.Equal(newKey.Secret) || hasKey(before.AcceptedEncryptionKeys, newKey) && hasKey(after.AcceptedEncryptionKeys, oldKey) {
		return nil
	}
	return problem("Cluster.spec.secretsEncryptionKey",
		"cannot change in one step to a key that was not accepted before, or from a key that is not accepted afterwards: Secrets would be unreadable",
		"`orlopctl trust rotate-key` does it step by step (Cluster.spec.acceptedEncryptionKeys)")
}

// otherKeys reports whether the encryption keys of a cluster, or their order, would change. The
// result is also true if the key of the key manager changes, or if the key manager begins or ends
// to encrypt. Changes of its address and credentials have no effect on the result.
func otherKeys(before, next *config.Config) bool {
	return before != nil && before.Cluster != nil && next.Cluster != nil &&
		(!slices.EqualFunc(before.Cluster.Spec.EncryptionKeys(), next.Cluster.Spec.EncryptionKeys(), func(a, b config.EncryptionKey) bool { return a.Equal(b.Secret) }) ||
			kmsOf(before).Name() != kmsOf(next).Name() || kmsEncrypts(before) != kmsEncrypts(next))
}

func kmsOf(c *config.Config) *config.KMS { return c.Cluster.Spec.Kubernetes.APIServer.KMS }

func kmsEncrypts(c *config.Config) bool { return kmsOf(c) != nil && kmsOf(c).Encrypt }

// WithPresentKeys returns an earlier configuration with the encryption keys and the key manager of
// the present configuration, because these keys encrypt the stored Secrets. It returns an
// unreadable configuration unchanged: the caller parses it and reports the problem.
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
	keyManager, err := kmsOf(now).Revealed()
	if err != nil {
		return nil, err
	}
	// config.Merge keeps fields that a patch does not name. The first patch therefore removes the
	// earlier key manager, and the second adds the present one.
	for _, kms := range []map[string]any{nil, keyManager} {
		keys, err := json.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{
			"secretsEncryptionKey": now.Cluster.Spec.SecretsEncryptionKey.Reveal(), "acceptedEncryptionKeys": accepted,
			"kubernetes": map[string]any{"apiServer": map[string]any{"kms": kms}},
		}})
		if err != nil {
			return nil, err
		}
		if earlier, err = config.Merge(earlier, keys); err != nil {
			return nil, err
		}
	}
	return earlier, nil
}

// DroppedKeys returns the names of the encryption keys that the next configuration no longer has,
// including the key of a key manager.
func DroppedKeys(before, next *config.Config) (dropped []string) {
	if before == nil || before.Cluster == nil || next.Cluster == nil {
		return nil // The machine has no data, or CheckFixed rejects the removal of the cluster.
	}
	for _, k := range before.Cluster.Spec.EncryptionKeys() {
		if !hasKey(next.Cluster.Spec.EncryptionKeys(), k) {
			dropped = append(dropped, k.Name())
		}
	}
	if name := kmsOf(before).Name(); name != "" && name != kmsOf(next).Name() {
		dropped = append(dropped, name)
	}
	return dropped
}

func hasKey(list []config.EncryptionKey, k config.EncryptionKey) bool {
	return slices.ContainsFunc(list, func(o config.EncryptionKey) bool { return o.Equal(k.Secret) })
}

// checkKMS rejects three changes of the key manager. A new key manager cannot encrypt at once,
// because other machines may not decrypt with it yet. A key manager that encrypts cannot be
// removed. Its key cannot be replaced by another key. before and after are the previous and the
// next Cluster document.
func checkKMS(before, after config.ClusterSpec) Problems {
	const field = "Cluster.spec.kubernetes.apiServer.kms"
	was, is := before.Kubernetes.APIServer.KMS, after.Kubernetes.APIServer.KMS
	switch {
	case before.SecretsEncryptionKey.IsZero(): // There are no Secrets yet.
		return nil
	case was == nil && is != nil && is.Encrypt:
		return problem(field+".encrypt", "the key manager cannot encrypt before each control-plane machine decrypts with it: Secrets would be unreadable there",
			"apply it with encrypt: false on each control-plane machine first")
	case was != nil && was.Encrypt && is == nil:
		return problem(field, "cannot remove a key manager that encrypts: other machines still encrypt with it",
			"apply encrypt: false on each control-plane machine first")
	case was != nil && is != nil && was.Name() != is.Name():
		return problem(field+".transit", "cannot change to another key (namespace, mount or key) in one step: Secrets would be unreadable",
			"set encrypt: false and remove the key manager on each control-plane machine first, then add the other one")
	}
	return nil
}

package etcd

import (
	"context"
	"fmt"
	"strings"

	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Reencrypt rewrites all Secrets with the current encryption key; with countOnly it only counts the
// Secrets that it would rewrite. It fails while the API server may still encrypt with a former key.
func (k *Manager) Reencrypt(ctx context.Context, countOnly bool) (nodespec.ReencryptResult, error) {
	if err := k.check(); err != nil {
		return nodespec.ReencryptResult{}, err
	}
	ctx, cancel := limits.Within(ctx, k.deps.Stopping, dataTimeout)
	defer cancel()
	if err := k.deps.FormerKey(ctx); err != nil {
		return nodespec.ReencryptResult{}, err
	}
	return nodespec.Run[nodespec.ReencryptResult](ctx, k.deps.Command, paths.UserAPI, "reencrypt-secrets", nodespec.ReencryptRequest{CountOnly: countOnly})
}

// DropKeys rewrites all Secrets with the current encryption key before a configuration drops the
// keys with these names. It returns the operations, or with dry the planned operations; none
// without a name. An error rejects the configuration: a machine without the old key cannot read the
// Secrets that are encrypted with it.
func (k *Manager) DropKeys(ctx context.Context, names []string, dry bool) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	keys := strings.Join(names, ", ")
	done, err := k.Reencrypt(ctx, dry)
	if err != nil {
		return nil, fmt.Errorf("configuration refused; some Secrets may be encrypted again already, nothing else has changed: Cluster.spec: cannot drop the encryption key %s: %w", keys, err)
	}
	return []string{fmt.Sprintf("drop the encryption key %s: %d of %d Secrets were encrypted with another key than the present one, and are rewritten", keys, done.Reencrypted, done.Secrets)}, nil
}

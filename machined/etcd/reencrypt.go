package etcd

import (
	"context"

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

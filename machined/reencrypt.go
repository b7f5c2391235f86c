package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// reencryptTimeout bounds the rewrite of all Secrets, for which etcd reads and writes its data: at
// most 4 GiB, for which a slow disk takes minutes.
const reencryptTimeout = 10 * time.Minute

// reencryptSecrets rewrites all Secrets with the current encryption key before an old key is
// dropped. It returns the operations, or with dry the planned operations. An error rejects the
// configuration: a machine without the old key cannot read the Secrets that are encrypted with it.
func (m *machine) reencryptSecrets(ctx context.Context, before, next *config.Config, dry bool) ([]string, error) {
	dropped := transition.DroppedKeys(before, next)
	if len(dropped) == 0 {
		return nil, nil
	}
	refused := func(err error) ([]string, error) {
		return nil, fmt.Errorf("configuration refused, only the encryption of Secrets may have changed: Cluster.spec.acceptedEncryptionKeys: cannot drop %s: %w", strings.Join(dropped, ", "), err)
	}
	// An API server that still encrypts with a former key would continue to do so after the
	// rewrite. A running API server without a pending restart has the configured key, because the
	// file with the key is written before it starts.
	waits, err := m.reconciler.WaitingServices(before)
	if err != nil {
		return refused(err)
	}
	if slices.Contains(waits, nodeplan.ServiceKubeAPI) {
		return refused(fmt.Errorf("%s does not run with the present configuration yet; wait for that (`orlopctl health`)", nodeplan.ServiceKubeAPI))
	}
	ctx, cancel := limits.Within(ctx, m.power.Running(), reencryptTimeout)
	defer cancel()
	done, err := nodespec.Run[nodespec.ReencryptResult](ctx, m.commands.run, paths.UserAPI, "reencrypt-secrets", nodespec.ReencryptRequest{CountOnly: dry})
	if err != nil {
		return refused(err)
	}
	return []string{fmt.Sprintf("drop the encryption key %s: %d of %d Secrets were encrypted with another key than the present one, and are rewritten", strings.Join(dropped, ", "), done.Reencrypted, done.Secrets)}, nil
}

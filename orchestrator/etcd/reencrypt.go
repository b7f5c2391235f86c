package etcd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

const (
	// secretsAt is where the API server keeps Secrets (kubeapiserver: --etcd-prefix).
	secretsAt = "/registry/secrets/"
	// resealPage is how many Secrets are read at once; one has at most 1 MiB and a little more.
	resealPage = 16
	// resealTime bounds the whole; a thousand Secrets take a second on real hardware.
	resealTime = 10 * time.Minute
)

// reseal writes all Secrets again that are not sealed by the key by which the API server seals
// (docs/decisions/0027-ca-rotation.md). It works on etcd itself: no webhook has a say, and it does
// not matter whether the API server is up. It changes nothing with count only.
func reseal(ctx context.Context, dirs dirs.Dirs, count bool) (nodespec.ReencryptResult, error) {
	ctx, cancel := context.WithTimeout(ctx, resealTime)
	defer cancel()
	seals, err := seals(ctx, filepath.Join(dirs.API, nodespec.Encryption))
	if err != nil {
		return nodespec.ReencryptResult{}, err
	}
	c, err := connect(ctx, dirs)
	if err != nil {
		return nodespec.ReencryptResult{}, err
	}
	defer c.Close()
	if _, err := answer(ctx, c, dirs); err != nil {
		return nodespec.ReencryptResult{}, fmt.Errorf("etcd does not answer: %w", err)
	}
	// who has no quorum answers that, and would be asked again and again
	asking, done := context.WithTimeout(ctx, answerTime)
	defer done()
	if _, err := c.Get(asking, secretsAt, clientv3.WithCountOnly()); err != nil {
		return nodespec.ReencryptResult{}, fmt.Errorf("etcd has no quorum: %w", err)
	}
	return resealAll(ctx, c, seals, count)
}

// resealAll goes through all Secrets. One that somebody changes meanwhile is looked at again.
func resealAll(ctx context.Context, c *clientv3.Client, seals value.Transformer, count bool) (r nodespec.ReencryptResult, err error) {
	end := clientv3.GetPrefixRangeEnd(secretsAt)
pages:
	for from, more := secretsAt, true; more; {
		page, err := c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(resealPage))
		if err != nil {
			return r, fmt.Errorf("Secrets: cannot read: %w", err)
		}
		more = page.More
		for _, kv := range page.Kvs {
			key := string(kv.Key)
			again, err := resealed(ctx, seals, kv.Key, kv.Value)
			if err != nil {
				return r, fmt.Errorf("Secret %s: %w", strings.TrimPrefix(key, secretsAt), err)
			}
			if again != nil && !count {
				same := clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)
				done, err := c.Txn(ctx).If(same).Then(clientv3.OpPut(key, string(again), clientv3.WithIgnoreLease())).Commit()
				if err != nil {
					return r, fmt.Errorf("Secret %s: cannot write: %w", strings.TrimPrefix(key, secretsAt), err)
				}
				if !done.Succeeded {
					from, more = key, true
					continue pages
				}
			}
			r.Secrets++
			if again != nil {
				r.Reencrypted++
			}
			from = key + "\x00" // the next one that there may be
		}
	}
	return r, nil
}

// resealed is a value sealed by the first key; nil if it is so already.
func resealed(ctx context.Context, seals value.Transformer, key, stored []byte) ([]byte, error) {
	where := value.DefaultContext(key)
	plain, stale, err := seals.TransformFromStorage(ctx, stored, where)
	if err != nil {
		return nil, fmt.Errorf("is sealed by a key that this machine does not have: %w", err)
	}
	if !stale {
		return nil, nil
	}
	return seals.TransformToStorage(ctx, plain, where)
}

// seals reads the API server's EncryptionConfiguration as that does: it seals by the first key, and
// reads by all, and what is not sealed.
func seals(ctx context.Context, file string) (value.Transformer, error) {
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, "")
	if err != nil {
		return nil, fmt.Errorf("keys of Secrets: cannot use %s: %w", file, err)
	}
	t := c.Transformers[schema.GroupResource{Resource: "secrets"}]
	if t == nil {
		return nil, fmt.Errorf("keys of Secrets: %s has none", file)
	}
	return t, nil
}

package etcd

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/orlop-os/orlop/orchestrator/kms"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

const (
	// secretsPrefix is the key prefix of Secrets in etcd (kubeapiserver: --etcd-prefix).
	secretsPrefix = "/registry/secrets/"
	// reencryptPage is the number of Secrets in a read. A Secret has at most about 1 MiB, so a read
	// has at most 16 MiB.
	reencryptPage = 16
	// reencryptTimeout bounds the whole command. A thousand Secrets take a second on real hardware.
	reencryptTimeout = 10 * time.Minute
)

// reencrypt rewrites all Secrets that are not encrypted with the current encryption key of the API
// server (docs/decisions/0067-key-rotation.md). With a key manager, it also rewrites Secrets of
// former versions of the key. It works on etcd directly: no webhook can interfere, and the API
// server need not run. If count is true, it only counts these Secrets.
func reencrypt(ctx context.Context, l localMember, count bool) (nodespec.ReencryptResult, error) {
	ctx, cancel := context.WithTimeout(ctx, reencryptTimeout)
	defer cancel()
	file, keyManager, stop, err := kms.ForCommand(ctx, l.spec, l.dirs)
	if err != nil {
		return nodespec.ReencryptResult{}, err
	}
	defer stop()
	transformer, err := secretTransformer(ctx, file)
	if err != nil {
		return nodespec.ReencryptResult{}, err
	}
	c, err := connect(ctx, l.dirs)
	if err != nil {
		return nodespec.ReencryptResult{}, err
	}
	defer c.Close()
	if _, err := fetchStatus(ctx, c, l.dirs); err != nil {
		return nodespec.ReencryptResult{}, fmt.Errorf("etcd does not answer: %w", err)
	}
	// The client would retry for a long time if its member has no quorum, so this request has a
	// timeout.
	asking, done := context.WithTimeout(ctx, answerTimeout)
	defer done()
	if _, err := c.Get(asking, secretsPrefix, clientv3.WithCountOnly()); err != nil {
		return nodespec.ReencryptResult{}, fmt.Errorf("etcd has no quorum: %w", err)
	}
	r, err := reencryptAll(ctx, c, transformer, count)
	if reason := keyManager(); err != nil && reason != nil {
		err = fmt.Errorf("%w; the key manager: %w", err, reason)
	}
	return r, err
}

// reencryptAll rewrites, or counts, all Secrets that need it. If a client changes a Secret between
// the read and the write, reencryptAll reads that Secret again.
func reencryptAll(ctx context.Context, c *clientv3.Client, transformer value.Transformer, count bool) (r nodespec.ReencryptResult, err error) {
	end := clientv3.GetPrefixRangeEnd(secretsPrefix)
pages:
	for from, more := secretsPrefix, true; more; {
		page, err := c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(reencryptPage))
		if err != nil {
			return r, fmt.Errorf("Secrets: cannot read: %w", err)
		}
		more = page.More
		for _, kv := range page.Kvs {
			key := string(kv.Key)
			renewed, err := reencryptValue(ctx, transformer, kv.Key, kv.Value)
			if err != nil {
				return r, fmt.Errorf("Secret %s: %w", strings.TrimPrefix(key, secretsPrefix), err)
			}
			if renewed != nil && !count {
				same := clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)
				done, err := c.Txn(ctx).If(same).Then(clientv3.OpPut(key, string(renewed), clientv3.WithIgnoreLease())).Commit()
				if err != nil {
					return r, fmt.Errorf("Secret %s: cannot write: %w", strings.TrimPrefix(key, secretsPrefix), err)
				}
				if !done.Succeeded {
					from, more = key, true
					continue pages
				}
			}
			r.Secrets++
			if renewed != nil {
				r.Reencrypted++
			}
			from = key + "\x00" // the smallest key after this key
		}
	}
	return r, nil
}

// reencryptValue returns a value encrypted with the first key, or nil if it already is encrypted
// with that key.
func reencryptValue(ctx context.Context, transformer value.Transformer, key, stored []byte) ([]byte, error) {
	where := value.DefaultContext(key)
	plain, stale, err := transformer.TransformFromStorage(ctx, stored, where)
	if err != nil {
		return nil, fmt.Errorf("is encrypted with a key that this machine cannot use: %w", err)
	}
	if !stale {
		return nil, nil
	}
	return transformer.TransformToStorage(ctx, plain, where)
}

// secretTransformer reads the EncryptionConfiguration of the API server in the same way as the API
// server. The transformer encrypts with the first key. It decrypts values of all keys, and also
// reads plain values.
func secretTransformer(ctx context.Context, file string) (value.Transformer, error) {
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, "")
	if err != nil {
		return nil, fmt.Errorf("encryption keys: cannot use %s: %w", file, err)
	}
	t := c.Transformers[schema.GroupResource{Resource: "secrets"}]
	if t == nil {
		return nil, fmt.Errorf("encryption keys: %s has none for Secrets", file)
	}
	return t, nil
}

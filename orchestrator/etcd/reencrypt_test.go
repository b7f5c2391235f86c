package etcd

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// encryptionConfig returns a configuration with keys of these names. Each key is its name,
// repeated.
func encryptionConfig(names ...string) []byte {
	var list strings.Builder
	for _, name := range names {
		key := []byte(strings.Repeat(name, 32)[:32])
		fmt.Fprintf(&list, "      - {name: %q, secret: %s}\n", name, base64.StdEncoding.EncodeToString(key))
	}
	return []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - secretbox:\n      keys:\n" +
		list.String() + "  - identity: {}\n")
}

// TestReencrypt checks that reencrypt encrypts all Secrets with the first key, page by page:
// Secrets that are encrypted with another key, and plain Secrets. It must not write any other
// object of etcd.
func TestReencrypt(t *testing.T) {
	ctx := context.Background()
	m := newMember(t)
	read := func(name string) value.Transformer {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, encryptionConfig(name), 0o600); err != nil {
			t.Fatal(err)
		}
		seal, err := secretTransformer(ctx, file)
		if err != nil {
			t.Fatal(err)
		}
		return seal
	}
	put := func(c *clientv3.Client, key, by, plain string) {
		stored := []byte(plain)
		if by != "" {
			var err error
			if stored, err = read(by).TransformToStorage(ctx, stored, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Put(ctx, key, string(stored)); err != nil {
			t.Fatal(err)
		}
	}
	configure := func(names ...string) {
		if err := os.WriteFile(filepath.Join(m.local.dirs.API, nodespec.Encryption), encryptionConfig(names...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.serve(ownFormat(), func(c *clientv3.Client) {
		const others = 2*reencryptPage + 3
		for n := range others {
			put(c, fmt.Sprintf("%sns/s%03d", secretsPrefix, n), "old", fmt.Sprintf("k8s\x00content %d", n))
		}
		put(c, secretsPrefix+"ns/new", "new", "k8s\x00new")
		put(c, secretsPrefix+"ns/plain", "", "k8s\x00plain")
		put(c, "/registry/secretsofothers/ns/x", "", "k8s\x00not a Secret")
		before, err := c.Get(ctx, secretsPrefix+"ns/new")
		if err != nil {
			t.Fatal(err)
		}
		configure("new", "old")
		want := nodespec.ReencryptResult{Secrets: others + 2, Reencrypted: others + 1}
		for range 2 { // a count changes nothing
			if r, err := reencrypt(ctx, m.local, true); err != nil || r != want {
				t.Fatalf("counted %+v, %v; want %+v", r, err, want)
			}
		}
		if r, err := reencrypt(ctx, m.local, false); err != nil || r != want {
			t.Fatalf("%+v, %v; want %+v", r, err, want)
		}
		if r, err := reencrypt(ctx, m.local, false); err != nil || r.Reencrypted != 0 {
			t.Errorf("second reencrypt: %+v, %v; want no further Secret", r, err)
		}
		alone := read("new")
		all, err := c.Get(ctx, secretsPrefix, clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range all.Kvs {
			plain, stale, err := alone.TransformFromStorage(ctx, kv.Value, nil)
			if err != nil || stale || !strings.HasPrefix(string(plain), "k8s\x00") {
				t.Errorf("%s: %q, stale %t, %v", kv.Key, plain, stale, err)
			}
			if n, ok := strings.CutPrefix(string(kv.Key), secretsPrefix+"ns/s"); ok && string(plain) != fmt.Sprintf("k8s\x00content %s", strings.TrimLeft(n[:2], "0")+n[2:]) {
				t.Errorf("%s contains %q", kv.Key, plain)
			}
		}
		if other, err := c.Get(ctx, "/registry/secretsofothers/ns/x"); err != nil || string(other.Kvs[0].Value) != "k8s\x00not a Secret" {
			t.Errorf("an object that is not a Secret was changed: %v, %v", other, err)
		}
		if after, err := c.Get(ctx, secretsPrefix+"ns/new"); err != nil || after.Kvs[0].ModRevision != before.Kvs[0].ModRevision {
			t.Errorf("a Secret that was encrypted with the first key was written again: %v", err)
		}
		// No key decrypts this Secret, so reencrypt returns an error that names it.
		put(c, secretsPrefix+"ns/lost", "foreign", "k8s\x00lost")
		if _, err := reencrypt(ctx, m.local, false); err == nil || !strings.Contains(err.Error(), "Secret ns/lost: is encrypted with a key that this machine cannot use") {
			t.Errorf("an unknown key: %v", err)
		}
	})
	configure("new")
	if _, err := reencrypt(ctx, m.local, false); err == nil || !strings.Contains(err.Error(), "etcd does not run") {
		t.Errorf("without etcd: %v", err)
	}
}

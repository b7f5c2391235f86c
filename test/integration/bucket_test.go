package integration

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/netip"
	"os"
	"strings"

	"filippo.io/age"
	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orchestrator/etcd/s3/s3test"
)

// bucketVerb starts an S3 server to which a machine uploads its snapshots, or checks the newest
// snapshot on this server and writes it to a file, still encrypted.
func (s *story) bucketVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "bucket start PATCH KEY | newest FILE KEY")
	switch {
	case args[0] == "start":
		s.bucket = &s3test.Store{Region: "us-east-1", Bucket: "backups", AccessKey: "STORY-ACCESS-KEY-0000001", SecretKey: "the-story/has+this/secret+key/0000001"}
		host, err := s.network.NewHost("store", netip.Addr{})
		ts.Check(err)
		ca, err := serveTLS(host, s.bucket)
		ts.Check(err)
		key, err := age.GenerateX25519Identity()
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(key.String()+"\n"), 0o600))
		patch, err := yaml.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{"etcd": map[string]any{"snapshots": map[string]any{
			"recipients": []string{key.Recipient().String()},
			"target": map[string]any{
				"endpoint": "https://" + host.Addr().String(), "bucket": s.bucket.Bucket, "prefix": "orlop/story",
				"accessKey": s.bucket.AccessKey, "secretKey": s.bucket.SecretKey, "ca": string(ca),
			},
		}}}})
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(args[1]), patch, 0o600))
		s.note("the store %s has a bucket", host.Addr())
	case args[0] == "newest" && s.bucket != nil:
		keys := s.bucket.Keys()
		if len(keys) == 0 {
			ts.Fatalf("bucket: the bucket is empty")
		}
		newest := keys[len(keys)-1] // the names begin with the time of the snapshot
		object, _ := s.bucket.Object(newest)
		identities, err := age.ParseIdentities(strings.NewReader(ts.ReadFile(args[2])))
		ts.Check(err)
		opened, err := age.Decrypt(bytes.NewReader(object), identities...)
		ts.Check(err)
		text, err := io.ReadAll(opened)
		ts.Check(err)
		// A snapshot of etcd consists of whole pages of 512 bytes, followed by their SHA-256
		// digest.
		pages := max(len(text)-sha256.Size, 0)
		if sum := sha256.Sum256(text[:pages]); pages == 0 || pages%512 != 0 || !bytes.Equal(sum[:], text[pages:]) {
			ts.Fatalf("bucket: the content of %s is not a snapshot of etcd", newest)
		}
		ts.Check(os.WriteFile(ts.MkAbs(args[1]), object, 0o600))
		s.note("the bucket has %s, %d KiB", newest, len(object)>>10)
	default:
		ts.Fatalf("usage: bucket start PATCH KEY | newest FILE KEY")
	}
}

package etcd

import (
	"bytes"
	"encoding/pem"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/orlop-os/orlop/orchestrator/etcd/s3/s3test"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// operator returns the identity and the public key of an operator.
func operator(t *testing.T) (*age.X25519Identity, []string) {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return identity, []string{identity.Recipient().String()}
}

// TestSnapshotEncrypted checks that the machine stores an encrypted snapshot only in encrypted
// form, and that a download has the same form. A restore needs the operator's key: the machine
// rejects the encrypted file, and restores the decrypted one.
func TestSnapshotEncrypted(t *testing.T) {
	m := newMember(t)
	identity, recipients := operator(t)
	var kept storedSnapshot
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	m.serve(thisFormat, func(c *clientv3.Client) {
		revision := m.put(c, "known-to-the-operator-alone", 3)
		if kept, err = m.local.snapshots().take(t.Context(), nodespec.TakeSnapshotRequest{Most: 2, Recipients: recipients}, 0); err != nil {
			t.Fatal(err)
		}
		if !kept.Encrypted || kept.Revision != revision || !strings.HasSuffix(kept.Name, ".db.age") || kept.Size == 0 {
			t.Errorf("%+v", kept)
		}
		files, err := os.ReadDir(m.local.at(snapshotDir))
		if err != nil || len(files) != 1 {
			t.Errorf("the directory has %v, %v", files, err)
		}
		text, err := os.ReadFile(m.local.at(snapshotDir + "/" + kept.Name))
		if err != nil || bytes.Contains(text, []byte("known-to-the")) {
			t.Errorf("the stored snapshot is not encrypted: %v", err)
		}
		given, err := os.CreateTemp(t.TempDir(), "given")
		if err != nil {
			t.Fatal(err)
		}
		defer given.Close()
		if about, err := m.local.snapshots().copyTo(kept.Name, given); err != nil || about.Revision != revision || about.Version != kept.Version {
			t.Errorf("%+v, %v", about, err)
		}
		if _, err := given.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		opened, err := age.Decrypt(given, identity)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(plain, opened); err != nil {
			t.Fatal(err)
		}
		m.put(c, "after", 1)
		_, err = m.local.restores().prepare(t.Context(), nodespec.EtcdRestore{Stored: kept.Name}, nil, thisFormat)
		if err == nil || !strings.Contains(err.Error(), "orlopctl etcd restore --from-machine "+kept.Name+" --identity KEY") {
			t.Errorf("restore by the name of an encrypted snapshot: %v", err)
		}
		if _, err := m.local.snapshots().take(t.Context(), nodespec.TakeSnapshotRequest{Most: 2, Recipients: []string{identity.String()}}, 0); err == nil || strings.Contains(err.Error(), identity.String()) {
			t.Errorf("an invalid key: %v", err)
		}
		m.prepare(plain)
	})
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "known-to-the-operator-alone") })
}

// TestUpload checks that each encrypted snapshot is uploaded once, the newest first, and that a
// failed upload is retried. Another target gets all encrypted snapshots again. No target gets a
// plain snapshot.
func TestUpload(t *testing.T) {
	m := newMember(t)
	dir := m.local.at(snapshotDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, keys := operator(t)
	readers, err := recipients(keys)
	if err != nil {
		t.Fatal(err)
	}
	const newest, older, plain = "20261122T201140Z-9-3.6.0.db.age", "20261122T101140Z-8-3.6.0.db.age", "20261122T001140Z-7-3.6.0.db"
	for _, name := range []string{newest, older, plain} {
		var text bytes.Buffer
		if strings.HasSuffix(name, encryptedSuffix) {
			if err := encrypt(&text, strings.NewReader(name), readers); err != nil {
				t.Fatal(err)
			}
		} else {
			text.WriteString(name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store := &s3test.Store{Region: "us-east-1", Bucket: "backups", AccessKey: "EXAMPLE", SecretKey: "secret"}
	server := httptest.NewTLSServer(store)
	defer server.Close()
	target := nodespec.EtcdTarget{
		Place: "one", Endpoint: server.URL, Region: "us-east-1", Bucket: "backups", Prefix: "orlop/site-1", AccessKey: "EXAMPLE", SecretKey: "secret",
		CA: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	}
	store.Fail(1)
	if _, err := m.local.uploader().next(t.Context(), target); err == nil || !strings.Contains(err.Error(), "SlowDown") {
		t.Errorf("an upload that the store rejects: %v", err)
	}
	for i, want := range []nodespec.UploadResult{{Uploaded: newest, Remaining: 1}, {Uploaded: older}, {}} {
		done, err := m.local.uploader().next(t.Context(), target)
		if err != nil || done.Uploaded != want.Uploaded || done.Remaining != want.Remaining {
			t.Errorf("%d: %+v, %v; want %+v", i, done, err, want)
		}
	}
	for _, name := range []string{newest, older} {
		got, ok := store.Object("orlop/site-1/c/n/" + name)
		if want, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !ok || !bytes.Equal(got, want) {
			t.Errorf("%s: %t, %v, %d bytes; want %d", name, ok, err, len(got), len(want))
		}
	}
	if keys := store.Keys(); len(keys) != 2 {
		t.Errorf("the store has %q, want two objects", keys)
	}
	all, err := m.local.snapshots().list("one")
	if err != nil || len(all) != 3 || time.Since(all[0].Uploaded) > time.Minute || all[1].Uploaded.IsZero() || !all[2].Uploaded.IsZero() {
		t.Errorf("%+v, %v", all, err)
	}
	// This plain file has the name of an encrypted snapshot.
	const misnamed = "20261123T001140Z-10-3.6.0.db.age"
	if err := os.WriteFile(filepath.Join(dir, misnamed), []byte("in the clear"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.local.uploader().next(t.Context(), target); err == nil || !strings.Contains(err.Error(), "it is not encrypted") {
		t.Errorf("upload of a plain file: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, misnamed)); err != nil {
		t.Fatal(err)
	}
	target.Place, target.Prefix = "two", ""
	if done, err := m.local.uploader().next(t.Context(), target); err != nil || done.Uploaded != newest || done.Remaining != 1 {
		t.Errorf("upload to the second target: %+v, %v", done, err)
	}
	if _, ok := store.Object("c/n/" + newest); !ok {
		t.Errorf("the store has %q", store.Keys())
	}
	if err := os.WriteFile(m.local.at(uploadsFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := m.local.snapshots().list("two"); err != nil || !all[0].Uploaded.IsZero() {
		t.Errorf("the list with a damaged record of the uploads: %+v, %v", all, err)
	}
}

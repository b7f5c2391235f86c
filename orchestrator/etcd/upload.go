package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"github.com/orlop-os/orlop/orchestrator/etcd/s3"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// machined uploads each stored and encrypted snapshot once to the target of the configuration.
// machined decides when, and repeats the command of this file until every snapshot is uploaded. A
// file in the directory of the snapshots records the uploads.

// uploadsFile holds the uploadRecord.
const uploadsFile = "sent.json"

// uploadRecord lists the snapshots that a target has.
type uploadRecord struct {
	Place string               `json:"place"`
	At    map[string]time.Time `json:"at"` // times of the uploads, by snapshot name
}

// uploads returns the record for a target. A record that cannot be decoded counts as empty: the
// snapshots are uploaded again.
func (l snapshots) uploads(place string) (uploadRecord, error) {
	none := uploadRecord{Place: place, At: map[string]time.Time{}}
	text, err := os.ReadFile(l.at(uploadsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("etcd: cannot read the record of uploads: %w", err)
	}
	var n uploadRecord
	if json.Unmarshal(text, &n) != nil || n.Place != place || n.At == nil {
		return none, nil
	}
	return n, nil
}

// notUploaded returns the encrypted snapshots that are not uploaded yet, in the order of all: the
// newest first.
func notUploaded(all []storedSnapshot) []storedSnapshot {
	return slices.DeleteFunc(slices.Clone(all), func(s storedSnapshot) bool { return !s.Encrypted || !s.Uploaded.IsZero() })
}

// uploader uploads the stored snapshots.
type uploader struct{ snapshots }

// next uploads the newest snapshot that the target does not have, and returns how many
// remain.
func (l uploader) next(ctx context.Context, target nodespec.EtcdTarget) (done nodespec.UploadResult, err error) {
	all, err := l.list(target.Place)
	if err != nil {
		return done, err
	}
	waiting := notUploaded(all)
	if len(waiting) == 0 {
		return done, nil
	}
	s := waiting[0]
	f, err := l.open(s.Name)
	if err != nil {
		return done, err
	}
	defer f.Close()
	if err := checkEncrypted(f); err != nil {
		return done, fmt.Errorf("etcd: cannot upload the snapshot %s: %w", s.Name, err)
	}
	to := s3.Bucket{
		Endpoint: target.Endpoint, Region: target.Region, Name: target.Bucket,
		AccessKey: target.AccessKey, SecretKey: target.SecretKey, CA: target.CA, Egress: target.Egress,
	}
	if err := to.Put(ctx, path.Join(target.Prefix, l.spec.Cluster, l.spec.Node.Name, s.Name), f, s.Size); err != nil {
		return done, err
	}
	s.Uploaded = time.Now().UTC().Truncate(time.Second)
	if err := l.record(target.Place, all, s); err != nil {
		return done, err
	}
	return nodespec.UploadResult{Uploaded: s.Name, Remaining: len(waiting) - 1}, nil
}

// record adds an upload to the record, and drops the entries of deleted snapshots.
func (l uploader) record(place string, all []storedSnapshot, one storedSnapshot) error {
	n := uploadRecord{Place: place, At: map[string]time.Time{one.Name: one.Uploaded}}
	for _, s := range all {
		if !s.Uploaded.IsZero() {
			n.At[s.Name] = s.Uploaded
		}
	}
	return l.writeJSON(uploadsFile, n)
}

// checkEncrypted returns an error if a file does not begin as age files do. The name of the file is
// not a sufficient check, because the file leaves the machine.
func checkEncrypted(f io.ReaderAt) error {
	const head = "age-encryption.org/v1\n"
	begins := make([]byte, len(head))
	if _, err := f.ReadAt(begins, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(begins) != head {
		return errors.New("it is not encrypted")
	}
	return nil
}

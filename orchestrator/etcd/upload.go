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

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/s3"
)

// Snapshots that the machine has kept and encrypted go to the target of the configuration, each
// once. machined says when, and goes on until none is left; what was sent is written down beside
// the snapshots.

// sentFile holds what was sent, sentNote.
const sentFile = "sent.json"

// sentNote is what one place has.
type sentNote struct {
	Place string               `json:"place"`
	At    map[string]time.Time `json:"at"` // when, by the names of the snapshots
}

// sent is what a place has. What cannot be made out counts as not sent: it is sent again.
func (k keeper) sent(place string) (sentNote, error) {
	none := sentNote{Place: place, At: map[string]time.Time{}}
	text, err := os.ReadFile(k.at(sentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("etcd: cannot read what was sent: %w", err)
	}
	var n sentNote
	if json.Unmarshal(text, &n) != nil || n.Place != place || n.At == nil {
		return none, nil
	}
	return n, nil
}

// toSend are those of all, the newest first, that are to be sent yet.
func toSend(all []nodespec.StoredSnapshot) []nodespec.StoredSnapshot {
	return slices.DeleteFunc(slices.Clone(all), func(s nodespec.StoredSnapshot) bool { return !s.Encrypted || !s.Sent.IsZero() })
}

// send sends the newest snapshot that the target does not have, and says how many are left then.
func (k keeper) send(ctx context.Context, target nodespec.EtcdTarget) (done nodespec.UploadResult, err error) {
	all, err := k.kept(target.Place)
	if err != nil {
		return done, err
	}
	waiting := toSend(all)
	if len(waiting) == 0 {
		return done, nil
	}
	s := waiting[0]
	f, err := k.openKept(s.Name)
	if err != nil {
		return done, err
	}
	defer f.Close()
	if err := isSealed(f); err != nil {
		return done, fmt.Errorf("etcd: cannot send the snapshot %s: %w", s.Name, err)
	}
	to := s3.Bucket{
		Endpoint: target.Endpoint, Region: target.Region, Name: target.Bucket,
		AccessKey: target.AccessKey, SecretKey: target.SecretKey, CA: []byte(target.CA),
	}
	if err := to.Put(ctx, path.Join(target.Prefix, k.spec.Cluster, k.spec.NodeName, s.Name), f, s.Size); err != nil {
		return done, err
	}
	s.Sent = time.Now().UTC().Truncate(time.Second)
	if err := k.noteSent(target.Place, all, s); err != nil {
		return done, err
	}
	return nodespec.UploadResult{Sent: s, Remaining: len(waiting) - 1}, nil
}

// noteSent writes down that one more of all was sent, and forgets those that are gone.
func (k keeper) noteSent(place string, all []nodespec.StoredSnapshot, one nodespec.StoredSnapshot) error {
	n := sentNote{Place: place, At: map[string]time.Time{one.Name: one.Sent}}
	for _, s := range all {
		if !s.Sent.IsZero() {
			n.At[s.Name] = s.Sent
		}
	}
	return k.note(sentFile, n)
}

// isSealed is an error unless a file begins as those of age do: its name alone is not believed
// where others will have it.
func isSealed(f io.ReaderAt) error {
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

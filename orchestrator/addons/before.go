package addons

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// An add-on goes back by itself: the manifests that were applied to the end and found healthy are kept in a Secret beside the record, and
// when others do not become healthy in time, they are what is wanted again, until the document has others still.

// Withdrawn are manifests that did not become healthy in time. The zero value is none.
type Withdrawn struct {
	Digest string `json:"digest"`
	Why    string `json:"why"`
}

// kept is what an add-on's document had when all of it was healthy: the key before in a Secret of the add-on's name, JSON compressed by gzip.
type kept struct {
	Digest    string   `json:"digest"`    // of the manifests, as in Record.Finished
	Namespace string   `json:"namespace"` // of objects that name none
	Manifests []string `json:"manifests"` // the texts of the document, and of its artefact
}

const (
	keptField  = "before.json.gz"
	keptDigest = "orlop.dev/addon-digest" // an annotation that saves reading the rest
)

// mostKept is how large the Secret may be. The API server takes as much in the fields of one together (ValidateSecret); unpacked, it is
// what an artefact may have (package artifact) beside what a document has.
const (
	mostKept     = corev1.MaxSecretSize
	mostUnpacked = 40 << 20
)

// errLarge says that what should be kept has no room in a Secret.
var errLarge = errors.New("the manifests are too large to be kept for going back")

func (k kept) secret(name string) (*corev1.Secret, error) {
	text, err := json.Marshal(k)
	if err != nil {
		return nil, fmt.Errorf("manifests of the add-on %s: cannot be encoded: %w", name, err)
	}
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is one that there is
	if _, err := w.Write(text); err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("manifests of the add-on %s: cannot be packed: %w", name, err)
	}
	if packed.Len() > mostKept || len(text) > mostUnpacked {
		return nil, errLarge
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Annotations: map[string]string{keptDigest: k.Digest}},
		Type:       "orlop.dev/addon", Data: map[string][]byte{keptField: packed.Bytes()},
	}, nil
}

func unpack(s *corev1.Secret) (kept, error) {
	var k kept
	r, err := gzip.NewReader(bytes.NewReader(s.Data[keptField]))
	if err == nil {
		err = json.NewDecoder(io.LimitReader(r, mostUnpacked+1)).Decode(&k)
	}
	if err != nil { // the message may show a Secret
		return kept{}, fmt.Errorf("Secret %s/%s: %s cannot be read", s.Namespace, s.Name, keptField)
	}
	return k, nil
}

// trial is how long manifests have been looked at that are not healthy yet.
type trial struct {
	digest string
	spent  time.Duration
	last   time.Time
}

// mostGap is the most of the time between two looks that counts: when nobody looked, because the API server or all machines were away,
// nothing could become healthy either.
const mostGap = 2 * backoff

// add counts a look at manifests.
func (t *trial) add(digest string, now time.Time) {
	if t.digest != digest {
		*t = trial{digest: digest, last: now}
	}
	t.spent += min(now.Sub(t.last), mostGap)
	t.last = now
}

// weigh says what a pass means for the manifests as a whole: all of them are healthy, and are to be kept; or the time that they have is over.
// The first ones that an add-on ever had have no limit: there is nothing to go back to.
func (k *keeper) weigh(w Wanted, r Record, out outcome, limit time.Duration, now time.Time) (healthy, over bool) {
	if r.Finished == w.Digest {
		k.trial = trial{}
		return len(out.problems)+len(out.waits) == 0, false
	}
	if r.Finished == "" || len(w.Refused) > 0 || limit == 0 { // nothing of what is refused as a whole was applied
		return false, false
	}
	k.trial.add(w.Digest, now)
	return false, k.trial.spent >= limit
}

// choose has what is from before wanted in the place of manifests that were withdrawn, as long as the document has those and nobody asks
// for another try.
func (m *manager) choose(ctx context.Context, t *task) error {
	if t.record.Withdrawn.Digest == "" || t.unreadable || len(t.wanted.Refused) > 0 {
		return nil
	}
	if asked := t.stored.Annotations[retryAnnotation] != ""; asked || t.record.Withdrawn.Digest != t.wanted.Digest {
		t.record.Withdrawn = Withdrawn{} // and its annotation goes with the next writing
		return nil
	}
	before, err := m.instead(ctx, t)
	if err != nil {
		return err
	}
	if before == nil {
		t.record.Withdrawn = Withdrawn{}
		return nil
	}
	t.gone, t.wanted = t.record.Withdrawn, *before
	return nil
}

// conclude is what follows from a pass for the manifests of the document as a whole.
func (m *manager) conclude(ctx context.Context, t *task, k *remembered, r Record, out outcome, now time.Time) (Record, error) {
	healthy, over := k.weigh(t.wanted, r, out, t.addon.Within, now)
	switch {
	case healthy:
		return r, m.remember(ctx, t, k)
	case over:
		back, err := m.withdraw(ctx, t, r, out)
		if back.Withdrawn.Digest != "" {
			k.trial = trial{}
		}
		return back, err
	}
	return r, nil
}

// instead are the manifests of the record's Finished; nil when there are none to go back to.
func (m *manager) instead(ctx context.Context, t *task) (*Wanted, error) {
	s, err := m.client.CoreV1().Secrets(Namespace).Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the manifests before of the add-on %s: cannot be read: %w", t.name, marked(err))
	}
	if s.Annotations[keptDigest] != t.record.Finished {
		return nil, nil
	}
	k, err := unpack(s)
	if err != nil {
		klog.ErrorS(err, "An add-on cannot go back", "addon", t.name)
		return nil, nil
	}
	a := *t.addon
	a.Manifests, a.Artifact, a.Namespace = k.Manifests, nodespec.Artifact{}, k.Namespace
	m.kinds.failed = nil
	w := Read(a, nil, m.kinds.of)
	if m.kinds.failed != nil {
		return nil, fmt.Errorf("kinds of the API server: %w", m.kinds.failed)
	}
	return &w, nil
}

// remember keeps the manifests of an add-on that is healthy, once.
func (m *manager) remember(ctx context.Context, t *task, k *remembered) error {
	if k.kept == t.wanted.Digest {
		return nil
	}
	files, err := m.files(*t.addon)
	if err != nil {
		return nil // read a moment ago, and gone since: the next pass says it
	}
	before := kept{Digest: t.wanted.Digest, Namespace: t.addon.Namespace, Manifests: t.addon.Manifests}
	for _, f := range files {
		before.Manifests = append(before.Manifests[:len(before.Manifests):len(before.Manifests)], f.Content)
	}
	want, err := before.secret(t.name)
	k.large = errors.Is(err, errLarge)
	switch {
	case k.large:
		k.kept = t.wanted.Digest
		return nil
	case err != nil:
		return err
	}
	all := m.client.CoreV1().Secrets(Namespace)
	have, err := all.Get(ctx, t.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = all.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && have.Annotations[keptDigest] != want.Annotations[keptDigest]:
		if have.Type != want.Type { // it cannot be changed
			return fmt.Errorf("the manifests of the add-on %s: the Secret %s/%s is somebody else's; delete it", t.name, Namespace, t.name)
		}
		want.ResourceVersion = have.ResourceVersion
		_, err = all.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("the manifests of the add-on %s: cannot be kept for going back: %w", t.name, marked(err))
	}
	k.kept = t.wanted.Digest
	return nil
}

// withdraw says which manifests are withdrawn, if there are others to go back to.
func (m *manager) withdraw(ctx context.Context, t *task, r Record, out outcome) (Record, error) {
	why := "is not healthy"
	if all := append(out.problems[:len(out.problems):len(out.problems)], out.waits...); len(all) > 0 {
		why = shorten(all)[0]
	}
	if back, err := m.instead(ctx, t); err != nil || back == nil {
		return r, err
	}
	klog.InfoS("An add-on goes back", "addon", t.name, "from", t.wanted.Digest, "to", r.Finished, "because", why)
	r.Withdrawn = Withdrawn{t.wanted.Digest, why}
	return r, nil
}

// said is the problem of an add-on whose manifests were withdrawn.
func (w Withdrawn) said(name string) string {
	return fmt.Sprintf("its manifests %s did not become healthy in time (%s), and those from before are there again; give its document others, or have the same tried again: "+
		"kubectl -n %s annotate configmap %s %s=now", w.Digest, w.Why, Namespace, name, retryAnnotation)
}

// retryAnnotation is, on an add-on's record, what an operator has manifests tried again with that were withdrawn.
const retryAnnotation = "orlop.dev/retry"

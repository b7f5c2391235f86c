package addons

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// An add-on goes back by itself: the manifests that were applied to the end and found healthy are
// kept in a Secret beside the record, and when others do not become healthy in time, they are what
// is wanted again, until the document has others still.

// RolledBack are manifests that did not become healthy in time. The zero value is none.
type RolledBack struct {
	Digest string `json:"digest"`
	Why    string `json:"why"`
	Terms  string `json:"terms"` // under which they failed, as termsOf
	Node   string `json:"node"`  // the machine whose document has them
}

// kept is what an add-on's document had when all of it was healthy: JSON compressed by gzip, in a
// Secret of the add-on's name.
type kept struct {
	Digest    string   `json:"digest"`    // of the manifests, as in Record.Finished
	Namespace string   `json:"namespace"` // of objects that name none
	Manifests []string `json:"manifests"` // the texts of the document, and of its artefact
}

const (
	keptField  = "before.json.gz"
	keptDigest = "orlop.dev/addon-digest" // an annotation that saves reading the rest
	keptType   = corev1.SecretType("orlop.dev/addon")
)

// retryAnnotation is, on an add-on's record, what an operator has manifests tried again with that
// were withdrawn.
const retryAnnotation = "orlop.dev/retry"

// mostKept is how large the Secret may be. The API server takes as much in the fields of one
// together (ValidateSecret); unpacked, it is what an artefact may have (package artifact) beside
// what a document has.
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
		Type:       keptType, Data: map[string][]byte{keptField: packed.Bytes()},
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

// Trial is how long changed manifests have been looked at that are not healthy yet. It is in the
// record, because a machine that leads from now on must not begin anew.
type Trial struct {
	Digest  string `json:"digest"`
	Minutes int    `json:"minutes"`
}

// trial is the same between two writings of the record.
type trial struct {
	digest string
	spent  time.Duration
	last   time.Time
}

// mostGap is the most of the time between two looks that counts: when nobody looked, because the
// API server or all machines were away, nothing could become healthy either.
const mostGap = 2 * backoff

// add counts a look at manifests, of which the record has told before.
func (t *trial) add(digest string, told Trial, now time.Time) {
	if t.digest != digest {
		*t = trial{digest: digest, last: now}
		if told.Digest == digest {
			t.spent = time.Duration(told.Minutes) * time.Minute
		}
	}
	t.spent += min(now.Sub(t.last), mostGap)
	t.last = now
}

// weigh says what a pass means for the manifests as a whole: all of them are healthy, and are to be
// kept; or the time that they have is over. The first ones that an add-on ever had have no limit:
// there is nothing to go back to. Nor have those that are healthy already, and wait only for what
// was there before to go.
func (k *keeper) weigh(w Wanted, r *Record, out outcome, limit time.Duration, now time.Time) (healthy, over bool) {
	if r.Finished == w.Digest {
		k.trial, r.Trial = trial{}, Trial{}
		return len(out.problems)+len(out.waits) == 0, false
	}
	// nothing of what is refused as a whole was applied
	if r.Finished == "" || len(w.Refused) > 0 || limit == 0 || out.there {
		return false, false
	}
	k.trial.add(w.Digest, r.Trial, now)
	r.Trial = Trial{w.Digest, int(k.trial.spent / time.Minute)}
	return false, k.trial.spent >= limit
}

// termsOf changes with what a document says of an add-on beside its manifests. Others may let the
// same manifests become healthy.
func termsOf(a nodespec.Addon) string {
	// strings and numbers are always encoded
	text, _ := json.Marshal([]any{a.Namespaces, a.Rights, a.Kubernetes, a.Within})
	return fmt.Sprintf("%x", sha256.Sum256(text))[:16]
}

// choose has what is from before wanted in the place of manifests that were withdrawn, as long as
// the document has those, under the same terms, and nobody asks for another try.
func (m *manager) choose(ctx context.Context, t *task, now time.Time) error {
	gone := t.record.RolledBack
	if gone.Digest == "" || t.unreadable || len(t.wanted.Refused) > 0 {
		return nil
	}
	switch {
	case t.stored.Annotations[retryAnnotation] != "": // it goes with the next writing
		t.record.Running, t.record.Done = "", nil // hooks that failed run again
	case gone.Digest == t.wanted.Digest && gone.Terms == termsOf(*t.addon):
		return m.wantBefore(ctx, t, now)
	// that machine's document may have them still
	case t.wanted.Digest == t.record.Finished && gone.Node != m.spec.NodeName:
		return nil
	}
	t.record.RolledBack, t.record.Trial = RolledBack{}, Trial{}
	return nil
}

// wantBefore has what is from before wanted. Where that is not to be had, what is there stays as it
// is.
func (m *manager) wantBefore(ctx context.Context, t *task, now time.Time) error {
	gone := t.record.RolledBack
	before, why, err := m.before(ctx, t, now)
	switch {
	case errors.Is(err, errAway):
		return err
	case apierrors.IsForbidden(err): // what this package needs itself may have been taken from it
		return m.settle(ctx)
	case err != nil:
		why = err.Error()
	case before != nil:
		a := *t.addon
		a.Namespace = before.namespace
		t.addon, t.gone, t.wanted = &a, gone, before.wanted
		return nil
	}
	t.held = gone.said(t.name, false) + "; what was healthy before stays as it is: " + why
	return nil
}

// conclude is what follows from a pass for the manifests of the document as a whole. Trouble with
// what is kept for going back is told, and stands in the way of nothing else.
func (m *manager) conclude(ctx context.Context, t *task, k *remembered, r Record, out outcome, now time.Time) (Record, outcome) {
	healthy, over := k.weigh(t.wanted, &r, out, t.addon.Within, now)
	var why string
	switch {
	case healthy && t.addon.Within > 0:
		why = m.remember(ctx, t, k, now)
	case over:
		r, why = m.withdraw(ctx, t, k, r, out, now)
	}
	if why != "" {
		out.notes = append(out.notes, why)
	}
	return r, out
}

// copied are manifests that were kept, read again.
type copied struct {
	digest    string
	stamp     string // of the documents by which they were read
	at        time.Time
	namespace string
	wanted    Wanted
}

// before are the manifests of the record's Finished; nil when there are none to go back to, and
// then why. They are read again now and then.
func (m *manager) before(ctx context.Context, t *task, now time.Time) (*copied, string, error) {
	if c := m.copies[t.name]; c != nil && c.digest == t.record.Finished && c.stamp == m.stamp && now.Sub(c.at) < reapply &&
		(len(c.wanted.Unknown) == 0 || !c.at.Before(m.kinds.asked)) {
		return c, "", nil
	}
	delete(m.copies, t.name)
	s, err := m.client.CoreV1().Secrets(Namespace).Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Sprintf("the Secret %s/%s with the manifests from before is not there", Namespace, t.name), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("the manifests from before of the add-on %s: cannot be read: %w", t.name, marked(err))
	}
	k, err := unpack(s)
	if err != nil {
		return nil, "", err
	}
	a := *t.addon
	a.Manifests, a.Artifact, a.Namespace = k.Manifests, nodespec.Artifact{}, k.Namespace
	m.kinds.failed = nil
	c := &copied{digest: t.record.Finished, stamp: m.stamp, at: now, namespace: k.Namespace, wanted: Read(a, nil, m.kinds.of)}
	switch {
	case m.kinds.failed != nil:
		return nil, "", fmt.Errorf("kinds of the API server: %w", marked(m.kinds.failed))
	case c.wanted.Digest != c.digest:
		return nil, fmt.Sprintf("the Secret %s/%s has other manifests than those that were healthy", Namespace, t.name), nil
	case len(c.wanted.Refused) > 0:
		return nil, "those from before cannot be applied as the document is now: " + c.wanted.Refused[0], nil
	}
	if m.copies == nil {
		m.copies = map[string]*copied{}
	}
	m.copies[t.name] = c
	return c, "", nil
}

// remember keeps the manifests of an add-on that is healthy, and looks now and then whether they
// are still kept. It says why they are not; empty: they are.
func (m *manager) remember(ctx context.Context, t *task, k *remembered, now time.Time) (why string) {
	if k.kept == t.wanted.Digest && now.Sub(k.keptAt) < reapply {
		return k.unkept
	}
	done := func(unkept string) string {
		k.kept, k.keptAt, k.unkept = t.wanted.Digest, now, unkept
		return unkept
	}
	cannot := func(why any) string { return fmt.Sprintf("its manifests cannot be kept for going back: %v", why) }
	all := m.client.CoreV1().Secrets(Namespace)
	have, err := all.Get(ctx, t.name, metav1.GetOptions{})
	there := err == nil
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return cannot(err)
	case there && have.Type != keptType:
		return cannot(fmt.Sprintf("the Secret %s/%s is somebody else's; delete it", Namespace, t.name))
	case there && have.Annotations[keptDigest] == t.wanted.Digest:
		return done("")
	}
	files, err := m.files(*t.addon)
	if err != nil {
		return cannot(err)
	}
	before := kept{Digest: t.wanted.Digest, Namespace: t.addon.Namespace, Manifests: slices.Clone(t.addon.Manifests)}
	for _, f := range files {
		before.Manifests = append(before.Manifests, f.Content)
	}
	want, err := before.secret(t.name)
	switch {
	case errors.Is(err, errLarge):
		return done("it does not go back to its manifests when others fail: they are too large to be kept")
	case err != nil:
		return err.Error()
	case there:
		want.ResourceVersion = have.ResourceVersion
		_, err = all.Update(ctx, want, metav1.UpdateOptions{})
	default:
		_, err = all.Create(ctx, want, metav1.CreateOptions{})
	}
	if err != nil {
		return cannot(err)
	}
	return done("")
}

// withdraw notes which manifests are withdrawn, if there are others to go back to, and says why not
// if there are none.
func (m *manager) withdraw(ctx context.Context, t *task, k *remembered, r Record, out outcome, now time.Time) (Record, string) {
	back, none, err := m.before(ctx, t, now)
	switch {
	case err != nil:
		return r, err.Error()
	case back == nil:
		return r, "it is not healthy in time, and cannot go back: " + none
	}
	why := "is not healthy"
	if all := shorten(slices.Concat(out.problems, out.waits)); len(all) > 0 {
		why = all[0]
	}
	klog.InfoS("An add-on goes back", "addon", t.name, "from", t.wanted.Digest, "to", r.Finished, "because", why)
	k.trial, r.Trial = trial{}, Trial{}
	r.RolledBack = RolledBack{t.wanted.Digest, why, termsOf(*t.addon), m.spec.NodeName}
	return r, ""
}

// drop deletes what is kept of an add-on that is gone.
func (m *manager) drop(ctx context.Context, name string) error {
	delete(m.copies, name)
	all := m.client.CoreV1().Secrets(Namespace)
	s, err := all.Get(ctx, name, metav1.GetOptions{})
	if err == nil && s.Type == keptType {
		err = all.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("the manifests from before of the add-on %s: cannot be deleted: %w", name, marked(err))
	}
	return nil
}

// said is the problem of an add-on whose manifests were withdrawn. back: those from before are
// there again.
func (w RolledBack) said(name string, back bool) string {
	now := "and those from before are wanted again"
	if back {
		now = "and those from before are there again"
	}
	return fmt.Sprintf("its manifests %s did not become healthy in time (%s), %s; give its document others, or have the same tried again: "+
		"kubectl -n %s annotate configmap %s %s=now", w.Digest, w.Why, now, Namespace, name, retryAnnotation)
}

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

// An add-on rolls back by itself. The manifests that were applied completely and were healthy are
// stored in a Secret beside the record. If changed manifests do not become healthy in time, the
// add-on applies the stored manifests again, until the document changes once more.

// RolledBack describes manifests that did not become healthy in time. The zero value means none.
type RolledBack struct {
	Digest string `json:"digest"`
	Why    string `json:"why"`
	Terms  string `json:"terms"` // the terms under which the manifests failed, from termsOf
	Node   string `json:"node"`  // the machine with the document of the manifests
}

// storedManifests are the manifests of an add-on's document from a time when all its objects were
// healthy. They are stored as JSON, compressed by gzip, in a Secret with the add-on's name.
type storedManifests struct {
	Digest    string   `json:"digest"`    // of the manifests, as in Record.Finished
	Namespace string   `json:"namespace"` // the default namespace of objects
	Manifests []string `json:"manifests"` // the texts of the document and of its artifact
}

const (
	storedField  = "before.json.gz"
	storedDigest = "orlop.dev/addon-digest" // annotation: digest of the manifests
	storedType   = corev1.SecretType("orlop.dev/addon")
)

// retryAnnotation is an annotation with which an operator requests, on the record of an add-on,
// another trial of manifests that were rolled back.
const retryAnnotation = "orlop.dev/retry"

// maxStored is the largest size of the Secret: the API server accepts no more in all fields of a
// Secret together (ValidateSecret). maxUnpacked is the largest size of the unpacked manifests: the
// sum of the limits of an artifact (package artifact) and of a document.
const (
	maxStored   = corev1.MaxSecretSize
	maxUnpacked = 40 << 20
)

// errLarge is returned when the manifests do not fit into a Secret.
var errLarge = errors.New("the manifests are too large to be stored for a rollback")

func (k storedManifests) secret(name string) (*corev1.Secret, error) {
	text, err := json.Marshal(k)
	if err != nil {
		return nil, fmt.Errorf("manifests of the add-on %s: cannot encode: %w", name, err)
	}
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is valid
	if _, err := w.Write(text); err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("manifests of the add-on %s: cannot compress: %w", name, err)
	}
	if packed.Len() > maxStored || len(text) > maxUnpacked {
		return nil, errLarge
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Annotations: map[string]string{storedDigest: k.Digest}},
		Type:       storedType, Data: map[string][]byte{storedField: packed.Bytes()},
	}, nil
}

func unpack(s *corev1.Secret) (storedManifests, error) {
	var k storedManifests
	r, err := gzip.NewReader(bytes.NewReader(s.Data[storedField]))
	if err == nil {
		err = json.NewDecoder(io.LimitReader(r, maxUnpacked+1)).Decode(&k)
	}
	if err != nil { // the message may show a Secret
		return storedManifests{}, fmt.Errorf("Secret %s/%s: cannot read %s", s.Namespace, s.Name, storedField)
	}
	return k, nil
}

// Trial is the time for which changed manifests have been applied without becoming healthy. The
// record contains the Trial, so that the time goes on when another machine becomes the leader.
type Trial struct {
	Digest  string `json:"digest"`
	Minutes int    `json:"minutes"`
}

// trial is the Trial in memory; the record holds only whole minutes of it.
type trial struct {
	digest string
	spent  time.Duration
	last   time.Time
}

// maxGap limits the time that a trial counts between two passes. A longer gap means an outage of
// the API server or of all machines, in which the manifests could not become healthy.
const maxGap = 2 * maxBackoff

// add adds the time since the last pass to the trial of the manifests with a digest; recorded is
// the Trial of the record.
func (t *trial) add(digest string, recorded Trial, now time.Time) {
	if t.digest != digest {
		*t = trial{digest: digest, last: now}
		if recorded.Digest == digest {
			t.spent = time.Duration(recorded.Minutes) * time.Minute
		}
	}
	t.spent += min(now.Sub(t.last), maxGap)
	t.last = now
}

// judgeTrial evaluates a pass for the manifests as a whole. The result healthy is true if all
// objects are healthy, so that the manifests can be stored. The result over is true if the time
// limit for becoming healthy has passed. The first manifests of an add-on have no limit, because
// there is nothing to roll back to. Manifests that are healthy already, and wait only for the
// pruning of old objects, have no limit either.
func (k *reconciler) judgeTrial(w Wanted, r *Record, out outcome, limit time.Duration, now time.Time) (healthy, over bool) {
	if r.Finished == w.Digest {
		k.trial, r.Trial = trial{}, Trial{}
		return len(out.problems)+len(out.waits) == 0, false
	}
	// Refused manifests were not applied at all.
	if r.Finished == "" || len(w.Refused) > 0 || limit == 0 || out.complete {
		return false, false
	}
	k.trial.add(w.Digest, r.Trial, now)
	r.Trial = Trial{w.Digest, int(k.trial.spent / time.Minute)}
	return false, k.trial.spent >= limit
}

// termsOf returns a digest of the terms of a document: its namespaces, rights, Kubernetes version
// and time limit. The same manifests may become healthy under other terms.
func termsOf(a nodespec.Addon) string {
	// The encoding of strings and numbers does not fail.
	text, _ := json.Marshal([]any{a.Namespaces, a.Rights, a.Kubernetes, a.Within})
	return fmt.Sprintf("%x", sha256.Sum256(text))[:16]
}

// chooseManifests selects the previous manifests if the manifests of the document were rolled back.
// The selection lasts until the document or its terms change, or an operator requests another
// trial.
func (m *manager) chooseManifests(ctx context.Context, t *task, now time.Time) error {
	rolledBack := t.record.RolledBack
	if rolledBack.Digest == "" || t.unreadable || len(t.wanted.Refused) > 0 {
		return nil
	}
	switch {
	case t.stored.Annotations[retryAnnotation] != "": // the next write removes the annotation
		t.record.Running, t.record.Done = "", nil // failed hooks run again
	case rolledBack.Digest == t.wanted.Digest && rolledBack.Terms == termsOf(*t.addon):
		return m.wantPrevious(ctx, t, now)
	// The document of another machine may still have the manifests that were rolled back.
	case t.wanted.Digest == t.record.Finished && rolledBack.Node != m.spec.Node.Name:
		return nil
	}
	t.record.RolledBack, t.record.Trial = RolledBack{}, Trial{}
	return nil
}

// wantPrevious selects the previous manifests. If the previous manifests are not available, the
// present objects stay as they are.
func (m *manager) wantPrevious(ctx context.Context, t *task, now time.Time) error {
	rolledBack := t.record.RolledBack
	before, why, err := m.previous(ctx, t, now)
	switch {
	case errors.Is(err, errUnavailable):
		return err
	case apierrors.IsForbidden(err): // the rights of this package itself may have been removed
		return m.grantOwnRights(ctx)
	case err != nil:
		why = err.Error()
	case before != nil:
		a := *t.addon
		a.Namespace = before.namespace
		t.addon, t.rolledBack, t.wanted = &a, rolledBack, before.wanted
		return nil
	}
	t.holdReason = rolledBack.problem(t.name, false) + "; the healthy objects stay as they are: " + why
	return nil
}

// evaluateTrial stores the manifests of the document if a pass found them healthy, and rolls them
// back if their time is over. A problem with the stored manifests is reported as a note, and blocks
// no other operation.
func (m *manager) evaluateTrial(ctx context.Context, t *task, k *addonState, r Record, out outcome, now time.Time) (Record, outcome) {
	healthy, over := k.judgeTrial(t.wanted, &r, out, t.addon.Within, now)
	var why string
	switch {
	case healthy && t.addon.Within > 0:
		why = m.storeManifests(ctx, t, k, now)
	case over:
		r, why = m.rollBack(ctx, t, k, r, out, now)
	}
	if why != "" {
		out.notes = append(out.notes, why)
	}
	return r, out
}

// previousManifests are stored manifests and their objects, in memory.
type previousManifests struct {
	digest    string
	stamp     string    // manager.stamp at the time of the read: the state of the documents' file
	at        time.Time // time of the read
	namespace string
	wanted    Wanted
}

// previous returns the stored manifests with the digest Finished of the record, or nil and the
// reason why there are none to roll back to. It reads them again after reapplyInterval.
func (m *manager) previous(ctx context.Context, t *task, now time.Time) (*previousManifests, string, error) {
	if c := m.previousByName[t.name]; c != nil && c.digest == t.record.Finished && c.stamp == m.stamp && now.Sub(c.at) < reapplyInterval &&
		(len(c.wanted.Unknown) == 0 || !c.at.Before(m.kinds.refreshed)) {
		return c, "", nil
	}
	delete(m.previousByName, t.name)
	s, err := m.client.CoreV1().Secrets(Namespace).Get(ctx, t.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Sprintf("the Secret %s/%s with the previous manifests does not exist", Namespace, t.name), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("previous manifests of the add-on %s: cannot read: %w", t.name, asUnavailable(err))
	}
	k, err := unpack(s)
	if err != nil {
		return nil, "", err
	}
	a := *t.addon
	a.Manifests, a.Artifact, a.Namespace = k.Manifests, nodespec.Artifact{}, k.Namespace
	m.kinds.failed = nil
	c := &previousManifests{digest: t.record.Finished, stamp: m.stamp, at: now, namespace: k.Namespace, wanted: Read(a, nil, m.kinds.lookup)}
	switch {
	case m.kinds.failed != nil:
		return nil, "", fmt.Errorf("kinds of the API server: %w", asUnavailable(m.kinds.failed))
	case c.wanted.Digest != c.digest:
		return nil, fmt.Sprintf("the Secret %s/%s does not contain the manifests that were healthy", Namespace, t.name), nil
	case len(c.wanted.Refused) > 0:
		return nil, "the previous manifests cannot be applied under the present document: " + c.wanted.Refused[0], nil
	}
	if m.previousByName == nil {
		m.previousByName = map[string]*previousManifests{}
	}
	m.previousByName[t.name] = c
	return c, "", nil
}

// storeManifests stores the manifests of a healthy add-on, and checks after reapplyInterval that
// they still exist. It returns the reason if they are not stored.
func (m *manager) storeManifests(ctx context.Context, t *task, k *addonState, now time.Time) (why string) {
	if k.stored == t.wanted.Digest && now.Sub(k.storedAt) < reapplyInterval {
		return k.notStored
	}
	done := func(reason string) string {
		k.stored, k.storedAt, k.notStored = t.wanted.Digest, now, reason
		return reason
	}
	cannot := func(why any) string { return fmt.Sprintf("its manifests cannot be stored for a rollback: %v", why) }
	all := m.client.CoreV1().Secrets(Namespace)
	have, err := all.Get(ctx, t.name, metav1.GetOptions{})
	there := err == nil
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return cannot(err)
	case there && have.Type != storedType:
		return cannot(fmt.Sprintf("the Secret %s/%s is not of this add-on; delete it", Namespace, t.name))
	case there && have.Annotations[storedDigest] == t.wanted.Digest:
		return done("")
	}
	files, err := m.files(*t.addon)
	if err != nil {
		return cannot(err)
	}
	before := storedManifests{Digest: t.wanted.Digest, Namespace: t.addon.Namespace, Manifests: slices.Clone(t.addon.Manifests)}
	for _, f := range files {
		before.Manifests = append(before.Manifests, f.Content)
	}
	want, err := before.secret(t.name)
	switch {
	case errors.Is(err, errLarge):
		return done("it cannot roll back to these manifests later: they are too large to be stored")
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

// rollBack records that the manifests are rolled back, if previous manifests are available. If not,
// it returns the reason.
func (m *manager) rollBack(ctx context.Context, t *task, k *addonState, r Record, out outcome, now time.Time) (Record, string) {
	back, none, err := m.previous(ctx, t, now)
	switch {
	case err != nil:
		return r, err.Error()
	case back == nil:
		return r, "it is not healthy in time, and cannot roll back: " + none
	}
	why := "is not healthy"
	if all := shorten(slices.Concat(out.problems, out.waits)); len(all) > 0 {
		why = all[0]
	}
	klog.InfoS("Rolling back an add-on", "addon", t.name, "from", t.wanted.Digest, "to", r.Finished, "because", why)
	k.trial, r.Trial = trial{}, Trial{}
	r.RolledBack = RolledBack{t.wanted.Digest, why, termsOf(*t.addon), m.spec.Node.Name}
	return r, ""
}

// deleteManifests deletes the stored manifests of an add-on that is gone.
func (m *manager) deleteManifests(ctx context.Context, name string) error {
	delete(m.previousByName, name)
	all := m.client.CoreV1().Secrets(Namespace)
	s, err := all.Get(ctx, name, metav1.GetOptions{})
	if err == nil && s.Type == storedType {
		err = all.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("previous manifests of the add-on %s: cannot delete: %w", name, asUnavailable(err))
	}
	return nil
}

// problem describes manifests that were rolled back. The parameter back is true if the previous
// objects are restored already.
func (w RolledBack) problem(name string, back bool) string {
	now := "and the previous manifests are being restored"
	if back {
		now = "and the previous manifests are restored"
	}
	return fmt.Sprintf("its manifests %s did not become healthy in time (%s), %s; change its document, or request another trial: "+
		"kubectl -n %s annotate configmap %s %s=now", w.Digest, w.Why, now, Namespace, name, retryAnnotation)
}

package addons

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// cluster contains the operations of an add-on on the cluster.
type cluster interface {
	// get reads an object. It returns nil if the object does not exist.
	get(ctx context.Context, i Item) (*unstructured.Unstructured, error)
	// apply applies an object and returns the result.
	apply(ctx context.Context, i Item, body *unstructured.Unstructured) (*unstructured.Unstructured, error)
}

// removal contains the operations that prune objects.
type removal interface {
	get(ctx context.Context, i Item) (*unstructured.Unstructured, error)
	// delete deletes the object with that UID.
	delete(ctx context.Context, i Item, uid types.UID) error
	// hasResources reports whether resources of a definition exist.
	hasResources(ctx context.Context, definition *unstructured.Unstructured) (bool, error)
}

// errUnavailable is returned when the API server does not answer, so that the pass ends.
var errUnavailable = errors.New("the API server does not answer")

// reconciler reconciles one add-on. A single goroutine uses it.
type reconciler struct {
	name    string
	as      cluster
	remover removal
	scaled  autoscalerExists
	// granted is the time of the last change of the add-on's rights. An API server may apply the
	// change only a moment later.
	granted time.Time
	// applied are the objects as they were after their last apply.
	applied map[key]appliedObject
	// canRollBack reports whether the manifests can be rolled back while they are not healthy
	// (rollback.go).
	canRollBack bool
	trial       trial
	// time since which all passes found the changed manifests healthy, or zero
	healthySince time.Time
	// hooks that were applied since the manifests changed; nil: no change was seen, so failed hooks
	// do not run again
	attempted map[key]bool
	losses    map[key]loss // objects that others have deleted
	notes     []string     // of the present pass
}

// appliedObject is an object as it was after its last apply.
type appliedObject struct {
	uid     types.UID
	version string
	digest  string // of the applied body
	at      time.Time
}

// For the time rightsDelay after a change of an add-on's rights, an API server may not know the new
// rights yet, so a rejection is not a problem. An object is applied again after reapplyInterval
// even if its generation is the same, because a change of labels or annotations by others does not
// raise the generation.
const (
	rightsDelay     = 5 * time.Second
	reapplyInterval = 5 * time.Minute
)

// healthyPeriod is how long changed manifests must be healthy before the previous manifests are
// dropped. The reason is that a container that crashes only after a while is healthy until then.
const healthyPeriod = time.Minute

// outcome is the result of a pass.
type outcome struct {
	objects, healthy int
	problems         []string // conditions that need a change by the operator
	waits            []string // conditions that time may resolve
	notes            []string // information for the operator
	// complete: all wanted objects exist and are healthy; unwanted objects may remain to be pruned
	complete bool
}

// pass makes a single pass over an add-on and performs all operations that are possible now. It
// does not wait: the next pass continues. It calls the function save with the record before it
// creates an object that is not in the inventory.
func (k *reconciler) pass(ctx context.Context, w Wanted, r Record, now time.Time, save func(Record) error) (Record, outcome, error) {
	var out outcome
	r.Orphaned = slices.DeleteFunc(slices.Clone(r.Orphaned), func(kept OrphanedObject) bool {
		return slices.ContainsFunc(w.Objects, func(o Object) bool { return o.String() == kept.Object })
	})
	if len(w.Refused) == 0 && len(w.Unknown) == 0 {
		r.Ran = r.wantedRan(w.Objects)
	}
	if len(w.Refused) > 0 {
		out.problems, out.objects = w.Refused, len(w.Objects)
		return r, out, nil
	}
	out.problems = slices.Clone(w.Unknown)
	out.objects = len(w.Unknown)
	event, hooks := "upgrade", r.Finished != w.Digest
	if r.Finished == "" {
		event = "install"
	}
	if hooks && r.Running != w.Digest {
		r.Running, r.Done, k.attempted, k.healthySince = w.Digest, nil, map[key]bool{}, time.Time{}
		r.Ran = r.withoutHooks(w.Objects)
	}
	stages := Stages(w.Objects, hooks, event)
	for _, s := range stages {
		out.objects += len(s.Objects)
	}
	if next := Union(r.Inventory, w.Objects); !slices.Equal(next, r.Inventory) {
		if size := r.maxSize(next, w.Objects); len(next) > len(r.Inventory) && size > maxRecord {
			out.problems = append(out.problems, fmt.Sprintf("its record would have %d KiB, more than the limit of %d KiB: it has %d objects, and %d with the wanted objects; "+
				"no wanted object is applied; remove other objects from its document first, and add new objects when they are deleted, or in another add-on",
				size>>10, maxRecord>>10, len(r.Inventory), len(next)))
			return r, out, nil
		}
		r.Inventory = next
		if err := save(r); err != nil {
			return r, out, err
		}
	}
	applied, err := k.applyStages(ctx, stages, &r, &out, w.Digest, now)
	if err != nil {
		return r, out, err
	}
	changed := k.canRollBack && r.Finished != "" && r.Finished != w.Digest
	if out.complete = len(out.problems)+len(out.waits) == 0; !out.complete {
		k.healthySince = time.Time{}
	} else if k.healthySince.IsZero() {
		k.healthySince = now
	}
	// Objects that are no longer wanted are pruned when all their replacements exist. If the
	// manifests can still be rolled back, they must have been healthy for a while, too.
	if len(out.problems) > 0 || !everythingApplied(stages, applied) || changed && !out.complete {
		return r, out, nil
	}
	if left := healthyPeriod - now.Sub(k.healthySince); changed && left > 0 {
		out.waits = append(out.waits, fmt.Sprintf("all objects are healthy, and must stay so for another %s", left.Round(time.Second)))
		return r, out, nil
	}
	if r, err = k.prune(ctx, ToPrune(r.Inventory, w.Objects), r, &out, now); err != nil {
		return r, out, err
	}
	if len(out.waits) == 0 && len(out.problems) == 0 {
		r.Finished, r.Running, r.Done = w.Digest, "", nil
	}
	return r, out, nil
}

// applyStages reconciles the objects of the stages up to the first stage that is not complete. It
// returns the number of stages in which all objects were applied.
func (k *reconciler) applyStages(ctx context.Context, stages []Stage, r *Record, out *outcome, digest string, now time.Time) (applied int, err error) {
	k.notes = nil
	defer func() { out.notes = append(out.notes, k.notes...) }()
	for _, s := range stages {
		problems, waits, refused := len(out.problems), len(out.waits), false
		for _, o := range s.Objects {
			health, why, err := k.reconcileObject(ctx, o, r, digest, now)
			switch {
			case errors.Is(err, errUnavailable):
				return applied, err
			case errors.Is(err, errRightsPending):
				refused = true
				out.waits = append(out.waits, o.String()+": "+err.Error())
			case err != nil:
				out.problems = append(out.problems, err.Error())
			case health == Healthy:
				out.healthy++
			case health == Degraded:
				out.problems = append(out.problems, o.String()+": "+why)
			default:
				out.waits = append(out.waits, o.String()+": "+why)
			}
		}
		if len(out.problems) == problems && !refused {
			applied++
		}
		if len(out.problems) > problems || len(out.waits) > waits {
			break
		}
	}
	return applied, nil
}

// everythingApplied reports whether all objects were applied: no stage remains, or only stages of
// hooks that run after the objects.
func everythingApplied(stages []Stage, applied int) bool {
	return !slices.ContainsFunc(stages[applied:], func(s Stage) bool { return s.part != hooksAfter })
}

// reconcileObject reconciles one object and returns its health.
func (k *reconciler) reconcileObject(ctx context.Context, o Object, r *Record, digest string, now time.Time) (Health, string, error) {
	isHook := len(o.Hook.events) > 0
	if isHook && slices.Contains(r.Done, o.String()) {
		return Healthy, "", nil
	}
	live, err := k.as.get(ctx, o.Item)
	if err != nil {
		return Degraded, "", k.classify(o.Item, "cannot be read", err, now)
	}
	if live != nil && live.GetLabels()[Label] != k.name {
		return Degraded, ownerProblem(live, k.name, o.Item), nil
	}
	if ran := r.ran(o); ran != nil && (live == nil || live.GetAnnotations()[onceAnnotation] == once) {
		return k.completed(o, r, *ran, live)
	}
	again := isHook && live != nil && live.GetAnnotations()[digestAnnotation] != digest
	// the object of a failed hook does not recover by itself, so the hook runs again after a change
	// of the manifests
	if isHook && live != nil && k.attempted != nil && !k.attempted[o.key()] {
		health, _ := HealthOf(live)
		again = again || health == Degraded
	}
	if again {
		why, err := k.retainReason(ctx, o.Item, live)
		if err != nil {
			return Degraded, "", k.classify(o.Item, "cannot be read", err, now)
		}
		if why == "" {
			delete(k.applied, o.key()) // so that the deletion does not count as a loss
			return k.deleteForRerun(ctx, o.Item, live, now)
		}
		// The deletion of a definition, a claim or a namespace would delete the data of others in
		// it, so these objects are changed in place.
	}
	if live == nil {
		if why := k.restoreDelay(o, now); why != "" {
			return Waiting, why, nil
		}
	}
	scaled, err := k.autoscaledFields(ctx, o, live)
	if err != nil {
		return Degraded, "", k.classify(o.Item, "cannot be judged", err, now)
	}
	if missing := live == nil; missing || again || !isHook && k.needsApply(o, live, now) {
		if live, err = k.as.apply(ctx, o.Item, withoutIgnored(o.Body, live, scaled)); err != nil {
			return Degraded, "", k.classify(o.Item, "is refused", err, now)
		}
		if isHook && k.attempted != nil {
			k.attempted[o.key()] = true
		}
		if missing {
			k.recordRestored(o, now)
		}
		k.applied[o.key()] = appliedObject{live.GetUID(), versionOf(live), o.Digest, now}
	}
	r.recordCompleted(o, live)
	health, why, err := k.healthOf(ctx, o, live)
	if err != nil {
		return Degraded, "", k.classify(o.Item, "cannot be judged", err, now)
	}
	if isHook && health == Healthy {
		r.Done = append(r.Done, o.String())
	}
	return health, why, nil
}

// autoscaledFields returns the fields of a live object that an autoscaler sets. If the object does
// not exist (live is nil), it returns none.
func (k *reconciler) autoscaledFields(ctx context.Context, o Object, live *unstructured.Unstructured) ([][]string, error) {
	if live == nil {
		return nil, nil
	}
	scaled, note, err := autoscaledFields(ctx, o, live, k.scaled)
	if note != "" {
		k.notes = append(k.notes, note)
	}
	return scaled, err
}

// healthOf returns the health of a live object. For a claim it may read the storage class.
func (k *reconciler) healthOf(ctx context.Context, o Object, live *unstructured.Unstructured) (Health, string, error) {
	health, why := HealthOf(live)
	if health != Waiting || !isClaim(o.Item) || live.GetDeletionTimestamp() != nil {
		return health, why, nil
	}
	if len(o.Hook.events) > 0 {
		// many storage classes create the volume only for the pod that uses the claim, and that pod
		// is in a later stage
		return Healthy, "", nil
	}
	name := fields{live.Object}.text("spec", "storageClassName")
	if name == "" {
		return health, why, nil
	}
	class, err := k.as.get(ctx, classOf(name))
	switch {
	case apierrors.IsForbidden(err): // the add-on has no right to read it: the claim alone decides
		class = nil
	case err != nil:
		return Degraded, "", err
	case class == nil:
		return Waiting, "has no volume yet: there is no StorageClass " + name, nil
	}
	if waitsForConsumer(live, class) {
		return Healthy, "", nil
	}
	return health, why, nil
}

// completed returns the health of an object whose run has ended (ran). Such an object is not
// created again.
func (k *reconciler) completed(o Object, r *Record, ran CompletedHook, live *unstructured.Unstructured) (Health, string, error) {
	health, why := Healthy, ""
	switch {
	case live != nil:
		health, why = HealthOf(live)
	case ran.Failed != "":
		return Degraded, ran.Failed + "; it is deleted and not created again; change its manifest to run it again", nil
	}
	if health == Healthy && len(o.Hook.events) > 0 {
		r.Done = append(r.Done, o.String())
	}
	return health, why, nil
}

// deleteForRerun deletes the object of a hook that ran for other manifests.
func (k *reconciler) deleteForRerun(ctx context.Context, i Item, live *unstructured.Unstructured, now time.Time) (Health, string, error) {
	if live.GetDeletionTimestamp() == nil {
		if err := k.remover.delete(ctx, i, live.GetUID()); err != nil {
			return Degraded, "", k.classify(i, "cannot be deleted in order to run again", err, now)
		}
	}
	return Waiting, "is being deleted, to run again", nil
}

// errRightsPending is returned for a rejection shortly after rights were granted; a later attempt
// will succeed.
var errRightsPending = errors.New("its rights are being granted")

// classify returns the error about an item. A rejection shortly after rights were granted is
// errRightsPending.
func (k *reconciler) classify(i Item, what string, err error, now time.Time) error {
	if apierrors.IsForbidden(err) && now.Sub(k.granted) < rightsDelay {
		return errRightsPending
	}
	return itemError(i, what, err)
}

// itemError returns an error about an item. It omits the message of the API server about a Secret,
// because the message may show the Secret.
func itemError(i Item, what string, err error) error {
	if err = asUnavailable(err); errors.Is(err, errUnavailable) {
		return fmt.Errorf("%s %s: %w", i, what, err)
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) && i.Group == "" && i.Kind == "Secret" && !apierrors.IsForbidden(err) {
		return fmt.Errorf("%s %s: %s (message omitted, because it may show the Secret)", i, what, status.Status().Reason)
	}
	return fmt.Errorf("%s %s: %w", i, what, err)
}

// asUnavailable wraps an error in errUnavailable if the API server has not judged the request.
func asUnavailable(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return err
}

// ownerProblem describes the owner of an object that existed before.
func ownerProblem(live *unstructured.Unstructured, name string, i Item) string {
	if other := live.GetLabels()[Label]; other != "" {
		return "belongs to the add-on " + other
	}
	namespace := ""
	if i.Namespace != "" {
		namespace = " -n " + i.Namespace
	}
	return fmt.Sprintf("exists already and belongs to no add-on; remove it from the manifests, or assign it to this add-on: kubectl label%s %s %s %s=%s",
		namespace, i.resourceArgument(), i.Name, Label, name)
}

// resourceArgument returns the resource in the form of kubectl.
func (i Item) resourceArgument() string {
	if i.Group == "" {
		return i.Resource
	}
	return i.Resource + "." + i.Group
}

// needsApply reports whether an object must be applied: it was never applied, others have replaced
// or changed it, its manifest has changed, or reapplyInterval has passed.
func (k *reconciler) needsApply(o Object, live *unstructured.Unstructured, now time.Time) bool {
	m, before := k.applied[o.key()]
	return !before || m.uid != live.GetUID() || m.version != versionOf(live) || m.digest != o.Digest || now.Sub(m.at) >= reapplyInterval
}

// versionOf returns the generation of an object, which changes with its spec. If the API server
// counts no generations for the kind, it returns the resource version, which changes with every
// write.
func versionOf(o *unstructured.Unstructured) string {
	if g := o.GetGeneration(); g > 0 {
		return fmt.Sprint("g", g)
	}
	return "r" + o.GetResourceVersion()
}

// prune deletes items, step by step, and removes them from the inventory when they are gone. It is
// repeated until no item is left.
func (k *reconciler) prune(ctx context.Context, items []Item, r Record, out *outcome, now time.Time) (Record, error) {
	gone := map[key]bool{}
	for _, step := range Removal(items) {
		clean := true
		for _, i := range step {
			left, stays, err := k.pruneItem(ctx, i)
			if stays != "" {
				r.Orphaned = append(r.Orphaned, OrphanedObject{i.String(), stays})
			}
			switch {
			case err == nil && left == "":
				gone[i.key()] = true
				delete(k.applied, i.key())
			case err == nil:
				out.waits = append(out.waits, i.String()+": "+left)
			default:
				err = k.classify(i, "cannot be deleted", err, now)
				switch {
				case errors.Is(err, errUnavailable):
					return r.without(gone), err
				case errors.Is(err, errRightsPending):
					out.waits = append(out.waits, i.String()+": "+err.Error())
				default:
					out.problems = append(out.problems, err.Error())
				}
			}
			clean = clean && gone[i.key()]
		}
		if !clean {
			break
		}
	}
	return r.without(gone), nil
}

// The method without returns the record without the deleted items.
func (r Record) without(gone map[key]bool) Record {
	r.Inventory = slices.DeleteFunc(slices.Clone(r.Inventory), func(i Item) bool { return gone[i.key()] })
	names := map[string]bool{}
	for k := range gone {
		names[Item{Kind: k.kind, Namespace: k.namespace, Name: k.name}.String()] = true
	}
	r.Ran = slices.DeleteFunc(slices.Clone(r.Ran), func(ran CompletedHook) bool { return names[ran.Object] })
	return r
}

// pruneItem deletes one item. The result left describes what the deletion waits for, and is empty
// when the item is gone. The result stays is the reason if the item is retained.
func (k *reconciler) pruneItem(ctx context.Context, i Item) (left, stays string, err error) {
	live, err := k.remover.get(ctx, i)
	switch {
	case err != nil:
		return "", "", err
	case live == nil, live.GetLabels()[Label] != k.name:
		return "", "", nil
	case live.GetDeletionTimestamp() != nil:
		_, why := HealthOf(live)
		return why, "", nil
	}
	if stays, err = k.retainReason(ctx, i, live); stays != "" || err != nil {
		return "", stays, err
	}
	if err := k.remover.delete(ctx, i, live.GetUID()); err != nil {
		return "", "", err
	}
	return "is being deleted", "", nil
}

// retainReason returns the reason why an item is not deleted: users' data would be deleted with it,
// or an annotation of its chart demands that it stays. It returns "" if the item can be deleted.
func (k *reconciler) retainReason(ctx context.Context, i Item, live *unstructured.Unstructured) (string, error) {
	switch {
	case live.GetAnnotations()[helmPolicy] == "keep":
		return "its annotation " + helmPolicy + " demands it", nil
	case i.Group == corev1.GroupName && (i.Kind == "Namespace" || i.Kind == "PersistentVolume"), isClaim(i):
		return "its data would be lost", nil
	case isCRD(i.gvk().GroupKind()):
		if used, err := k.remover.hasResources(ctx, live); used || err != nil {
			return "it has resources", err
		}
	}
	return "", nil
}

func isClaim(i Item) bool { return i.Group == corev1.GroupName && i.Kind == "PersistentVolumeClaim" }

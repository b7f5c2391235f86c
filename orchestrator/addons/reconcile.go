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

// cluster is what an add-on does with the cluster.
type cluster interface {
	// get reads an object; nil when it is not there.
	get(ctx context.Context, i Item) (*unstructured.Unstructured, error)
	// apply applies an object, and returns it as it is then.
	apply(ctx context.Context, i Item, body *unstructured.Unstructured) (*unstructured.Unstructured, error)
}

// removal is what is done with what an add-on no longer wants.
type removal interface {
	get(ctx context.Context, i Item) (*unstructured.Unstructured, error)
	// delete deletes the object with that identity.
	delete(ctx context.Context, i Item, uid types.UID) error
	// used tells whether there are resources of a definition.
	used(ctx context.Context, definition *unstructured.Unstructured) (bool, error)
}

// errAway says that the API server does not answer: going on makes no sense.
var errAway = errors.New("the API server does not answer")

// keeper keeps one add-on. It is used by one goroutine.
type keeper struct {
	name    string
	as      cluster
	remover removal
	// granted is when the add-on's rights changed last. The API server takes a moment to hear of
	// it.
	granted time.Time
	// applied are the objects as they were after they were applied.
	applied map[key]mark
	// returns says that what is applied may be taken back, as long as it is not healthy
	// (before.go).
	returns bool
	trial   trial
	// since when all looks at changed manifests found them healthy; zero: they were not
	well time.Time
	anew map[key]bool // hooks that are not to run again because they failed; nil: none may
}

// mark is an object as it was after it was applied.
type mark struct {
	uid     types.UID
	version string
	digest  string // of what was applied
	at      time.Time
}

// settling is how long a refusal may come of rights that are not known everywhere yet; reapply is
// how long an object that looks the same is not applied again: labels and annotations can change
// without being seen.
const (
	settling = 5 * time.Second
	reapply  = 5 * time.Minute
)

// steady is how long changed manifests have to be healthy before those from before are let go of: a
// container that ends after a while is available until then.
const steady = time.Minute

// outcome is what a pass has seen.
type outcome struct {
	objects, healthy int
	problems         []string // what has to be changed by somebody
	waits            []string // what time may settle
	notes            []string // what somebody may want to know
	// all that is wanted is there and healthy, whatever else is left to do
	there bool
}

// pass looks at an add-on once and does what can be done now. It waits for nothing: what is not
// ready yet is looked at in the next one. save is called with the record before anything is made
// that is not in the inventory.
func (k *keeper) pass(ctx context.Context, w Wanted, r Record, now time.Time, save func(Record) error) (Record, outcome, error) {
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
		r.Running, r.Done, k.anew, k.well = w.Digest, nil, map[key]bool{}, time.Time{}
		r.Ran = r.withoutHooks(w.Objects)
	}
	stages := Stages(w.Objects, hooks, event)
	for _, s := range stages {
		out.objects += len(s.Objects)
	}
	if next := Union(r.Inventory, w.Objects); !slices.Equal(next, r.Inventory) {
		if size := r.most(next, w.Objects); len(next) > len(r.Inventory) && size > mostRecord {
			out.problems = append(out.problems, fmt.Sprintf("its record would have %d KiB, at most are %d: it has %d objects, and %d with those that are wanted now; "+
				"nothing of them is applied; take the others out of its document first, and bring new ones when those are gone, or in an add-on of their own",
				size>>10, mostRecord>>10, len(r.Inventory), len(next)))
			return r, out, nil
		}
		r.Inventory = next
		if err := save(r); err != nil {
			return r, out, err
		}
	}
	applied := 0 // stages of which everything was applied
	for _, s := range stages {
		problems, waits, refused := len(out.problems), len(out.waits), false
		for _, o := range s.Objects {
			health, why, err := k.object(ctx, o, &r, w.Digest, now)
			switch {
			case errors.Is(err, errAway):
				return r, out, err
			case errors.Is(err, errGiven):
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
	changed := k.returns && r.Finished != "" && r.Finished != w.Digest
	if out.there = len(out.problems)+len(out.waits) == 0; !out.there {
		k.well = time.Time{}
	} else if k.well.IsZero() {
		k.well = now
	}
	// What is no longer wanted goes when all that takes its place has come; while that may be taken
	// back, when it has proved itself.
	if len(out.problems) > 0 || !everythingApplied(stages, applied) || changed && !out.there {
		return r, out, nil
	}
	if left := steady - now.Sub(k.well); changed && left > 0 {
		out.waits = append(out.waits, fmt.Sprintf("all is healthy, and has to be so for another %s", left.Round(time.Second)))
		return r, out, nil
	}
	var err error
	if r, err = k.take(ctx, ToPrune(r.Inventory, w.Objects), r, &out, now); err != nil {
		return r, out, err
	}
	if len(out.waits) == 0 && len(out.problems) == 0 {
		r.Finished, r.Running, r.Done = w.Digest, "", nil
	}
	return r, out, nil
}

// everythingApplied says that of the stages at most hooks after everything else are left.
func everythingApplied(stages []Stage, applied int) bool {
	return !slices.ContainsFunc(stages[applied:], func(s Stage) bool { return s.part != hooksAfter })
}

// object brings one object in line with what is wanted, and says how it is.
func (k *keeper) object(ctx context.Context, o Object, r *Record, digest string, now time.Time) (Health, string, error) {
	isHook := len(o.Hook.events) > 0
	if isHook && slices.Contains(r.Done, o.String()) {
		return Healthy, "", nil
	}
	live, err := k.as.get(ctx, o.Item)
	if err != nil {
		return Degraded, "", k.judge(o.Item, "cannot be read", err, now)
	}
	if live != nil && live.GetLabels()[Label] != k.name {
		return Degraded, belongs(live, k.name, o.Item), nil
	}
	if ran := r.ran(o); ran != nil && (live == nil || live.GetAnnotations()[onceAnnotation] == once) {
		return k.over(o, r, *ran, live)
	}
	again := isHook && live != nil && live.GetAnnotations()[digestAnnotation] != digest
	// once: what fails then has failed
	if isHook && live != nil && k.anew != nil && !k.anew[o.key()] {
		health, _ := HealthOf(live)
		again = again || health == Degraded
	}
	if again {
		why, err := k.stays(ctx, o.Item, live)
		if err != nil {
			return Degraded, "", k.judge(o.Item, "cannot be read", err, now)
		}
		if why == "" {
			return k.clear(ctx, o.Item, live, now)
		}
		// A definition, a claim or a namespace would take with it what others have put there: it is
		// changed in place.
	}
	if live == nil || again || !isHook && k.stale(o, live, now) {
		if live, err = k.as.apply(ctx, o.Item, yielding(o.Body, live)); err != nil {
			return Degraded, "", k.judge(o.Item, "is refused", err, now)
		}
		if isHook && k.anew != nil {
			k.anew[o.key()] = true
		}
		k.applied[o.key()] = mark{live.GetUID(), versionOf(live), o.Digest, now}
	}
	r.runs(o, live)
	health, why, err := k.health(ctx, o, live)
	if err != nil {
		return Degraded, "", k.judge(o.Item, "cannot be judged", err, now)
	}
	if isHook && health == Healthy {
		r.Done = append(r.Done, o.String())
	}
	return health, why, nil
}

// health is how a live object is. Of a claim it may take its class to know.
func (k *keeper) health(ctx context.Context, o Object, live *unstructured.Unstructured) (Health, string, error) {
	health, why := HealthOf(live)
	if health != Waiting || !isClaim(o.Item) || live.GetDeletionTimestamp() != nil {
		return health, why, nil
	}
	if len(o.Hook.events) > 0 {
		// many classes wait for the pod that uses it, which comes in a later stage
		return Healthy, "", nil
	}
	name := fields{live.Object}.text("spec", "storageClassName")
	if name == "" {
		return health, why, nil
	}
	class, err := k.as.get(ctx, classOf(name))
	switch {
	case apierrors.IsForbidden(err): // the add-on has no such right: what the claim says counts
		class = nil
	case err != nil:
		return Degraded, "", err
	case class == nil:
		return Waiting, "has no volume yet: there is no StorageClass " + name, nil
	}
	if unused(live, class) {
		return Healthy, "", nil
	}
	return health, why, nil
}

// over is how an object is that is not made again.
func (k *keeper) over(o Object, r *Record, ran CompletedHook, live *unstructured.Unstructured) (Health, string, error) {
	health, why := Healthy, ""
	switch {
	case live != nil:
		health, why = HealthOf(live)
	case ran.Failed != "":
		return Degraded, ran.Failed + "; it is gone by now, and not made again: change its text to have it run", nil
	}
	if health == Healthy && len(o.Hook.events) > 0 {
		r.Done = append(r.Done, o.String())
	}
	return health, why, nil
}

// clear takes away what a hook has left when it ran for another text.
func (k *keeper) clear(ctx context.Context, i Item, live *unstructured.Unstructured, now time.Time) (Health, string, error) {
	if live.GetDeletionTimestamp() == nil {
		if err := k.remover.delete(ctx, i, live.GetUID()); err != nil {
			return Degraded, "", k.judge(i, "cannot be deleted, to run again", err, now)
		}
	}
	return Waiting, "goes, to run again", nil
}

// errGiven says of a refusal that time settles it.
var errGiven = errors.New("its rights are being given")

// judge is the error about an item: errGiven for a while after rights were given.
func (k *keeper) judge(i Item, what string, err error, now time.Time) error {
	if apierrors.IsForbidden(err) && now.Sub(k.granted) < settling {
		return errGiven
	}
	return refusal(i, what, err)
}

// refusal is an error about an item. What the API server says about a Secret may show it.
func refusal(i Item, what string, err error) error {
	if err = marked(err); errors.Is(err, errAway) {
		return fmt.Errorf("%s %s: %w", i, what, err)
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) && i.Group == "" && i.Kind == "Secret" && !apierrors.IsForbidden(err) {
		return fmt.Errorf("%s %s: %s (the message may show it, and is left out)", i, what, status.Status().Reason)
	}
	return fmt.Errorf("%s %s: %w", i, what, err)
}

// marked is an error of a request, marked as errAway when the API server has not judged the
// request.
func marked(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	return err
}

// belongs says whose an object is that was there before.
func belongs(live *unstructured.Unstructured, name string, i Item) string {
	if other := live.GetLabels()[Label]; other != "" {
		return "belongs to the add-on " + other
	}
	namespace := ""
	if i.Namespace != "" {
		namespace = " -n " + i.Namespace
	}
	return fmt.Sprintf("is there already and belongs to no add-on; leave it out, or give it to this one: kubectl label%s %s %s %s=%s",
		namespace, i.resourceArgument(), i.Name, Label, name)
}

// resourceArgument is the resource as kubectl reads it.
func (i Item) resourceArgument() string {
	if i.Group == "" {
		return i.Resource
	}
	return i.Resource + "." + i.Group
}

// stale says whether an object has to be applied: it was never, or is another by now, or has
// changed.
func (k *keeper) stale(o Object, live *unstructured.Unstructured, now time.Time) bool {
	m, before := k.applied[o.key()]
	return !before || m.uid != live.GetUID() || m.version != versionOf(live) || m.digest != o.Digest || now.Sub(m.at) >= reapply
}

// versionOf changes with what is wanted of an object, where the API server counts that; else with
// everything.
func versionOf(o *unstructured.Unstructured) string {
	if g := o.GetGeneration(); g > 0 {
		return fmt.Sprint("g", g)
	}
	return "r" + o.GetResourceVersion()
}

// take takes items away, step by step, and out of the inventory when they are gone. It is repeated
// until nothing is left.
func (k *keeper) take(ctx context.Context, items []Item, r Record, out *outcome, now time.Time) (Record, error) {
	gone := map[key]bool{}
	for _, step := range Removal(items) {
		clean := true
		for _, i := range step {
			left, stays, err := k.away(ctx, i)
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
				err = k.judge(i, "cannot be taken away", err, now)
				switch {
				case errors.Is(err, errAway):
					return r.without(gone), err
				case errors.Is(err, errGiven):
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

// without is the record without what is gone.
func (r Record) without(gone map[key]bool) Record {
	r.Inventory = slices.DeleteFunc(slices.Clone(r.Inventory), func(i Item) bool { return gone[i.key()] })
	names := map[string]bool{}
	for k := range gone {
		names[Item{Kind: k.kind, Namespace: k.namespace, Name: k.name}.String()] = true
	}
	r.Ran = slices.DeleteFunc(slices.Clone(r.Ran), func(ran CompletedHook) bool { return names[ran.Object] })
	return r
}

// away takes one item away. It says what is left of it, which is nothing when it is gone, and when
// it stays; then it says why.
func (k *keeper) away(ctx context.Context, i Item) (left, stays string, err error) {
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
	if stays, err = k.stays(ctx, i, live); stays != "" || err != nil {
		return "", stays, err
	}
	if err := k.remover.delete(ctx, i, live.GetUID()); err != nil {
		return "", "", err
	}
	return "is being deleted", "", nil
}

// stays says why something is not taken away: people's data would go with it, or its chart says so.
// Empty: it goes.
func (k *keeper) stays(ctx context.Context, i Item, live *unstructured.Unstructured) (string, error) {
	switch {
	case live.GetAnnotations()[helmPolicy] == "keep":
		return "its annotation " + helmPolicy + " says so", nil
	case i.Group == corev1.GroupName && (i.Kind == "Namespace" || i.Kind == "PersistentVolume"), isClaim(i):
		return "data would go with it", nil
	case isCRD(i.gvk().GroupKind()):
		if used, err := k.remover.used(ctx, live); used || err != nil {
			return "there are resources of it", err
		}
	}
	return "", nil
}

func isClaim(i Item) bool { return i.Group == corev1.GroupName && i.Kind == "PersistentVolumeClaim" }

package addons

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Some objects go by themselves when they have done what they are for: Kubernetes deletes a Job a
// while after its end (ttlSecondsAfterFinished, also where an admission policy sets it), and ended
// pods. They are not made again: what a Job does, a second run may undo. The record says which they
// are, so that another machine that leads knows it too.

// onceAnnotation says of an object that it is applied once for each of its texts, and left alone
// then.
const onceAnnotation = "orlop.dev/addon-apply"

// once is the value of onceAnnotation.
const once = "once"

// CompletedHook is an object that was applied, and is not made again when it is gone.
type CompletedHook struct {
	Object string `json:"object"`           // as Item.String
	Digest string `json:"digest"`           // of what was applied, shortened
	Failed string `json:"failed,omitempty"` // why it has failed, as far as that was seen
}

// mostFailed is how many bytes are kept of why an object has failed.
const mostFailed = 100

// short is the digest of an object's text in the record.
func (o Object) short() string { return o.Digest[:min(len(o.Digest), 16)] }

// ran is what the record says of an object and its text; nil: nothing.
func (r Record) ran(o Object) *CompletedHook {
	for i := range r.Ran {
		if r.Ran[i].Object == o.String() && r.Ran[i].Digest == o.short() {
			return &r.Ran[i]
		}
	}
	return nil
}

// runs notes of a live object that it is not to be made again.
func (r *Record) runs(o Object, live *unstructured.Unstructured) {
	if !goes(live) {
		return
	}
	now := CompletedHook{Object: o.String(), Digest: o.short()}
	if health, why := HealthOf(live); health == Degraded {
		now.Failed = why[:min(len(why), mostFailed)]
	}
	r.Ran = append(slices.DeleteFunc(slices.Clone(r.Ran), func(other CompletedHook) bool { return other.Object == now.Object }), now)
}

// goes says of a live object that it goes by itself, or is left alone once it is there.
func goes(live *unstructured.Unstructured) bool {
	if live.GetAnnotations()[onceAnnotation] == once {
		return true
	}
	f := fields{live.Object}
	switch gk := live.GroupVersionKind().GroupKind(); gk.Group + "/" + gk.Kind {
	case "batch/Job":
		_, stated := f.number("spec", "ttlSecondsAfterFinished")
		return stated
	case "/Pod":
		phase := f.text("status", "phase")
		return phase == "Succeeded" || phase == "Failed"
	}
	return false
}

// wantedRan leaves out what is no longer wanted.
func (r Record) wantedRan(objects []Object) []CompletedHook {
	names := map[string]bool{}
	for _, o := range objects {
		names[o.String()] = true
	}
	return slices.DeleteFunc(slices.Clone(r.Ran), func(ran CompletedHook) bool { return !names[ran.Object] })
}

// withoutHooks leaves out the hooks: they run again.
func (r Record) withoutHooks(objects []Object) []CompletedHook {
	hooks := map[string]bool{}
	for _, o := range objects {
		if len(o.Hook.events) > 0 {
			hooks[o.String()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(r.Ran), func(ran CompletedHook) bool { return hooks[ran.Object] })
}

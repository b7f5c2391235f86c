package addons

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Some objects disappear when their work is done: Kubernetes deletes ended pods, requests for
// certificates, events, and a Job some time after its end (ttlSecondsAfterFinished, which an
// admission policy may set, too). kindRules names the kinds. The add-on does not create them again,
// because a second run of a Job may undo the first. The record lists them, so that another machine
// that becomes the leader knows them, too.

// onceAnnotation marks an object that is applied once for each version of its text, and then left
// alone.
const onceAnnotation = "orlop.dev/addon-apply"

// once is the value of onceAnnotation.
const once = "once"

// CompletedHook is an object that was applied, and is not created again when it is gone.
type CompletedHook struct {
	Object string `json:"object"`           // as Item.String
	Digest string `json:"digest"`           // of the applied text, shortened
	Failed string `json:"failed,omitempty"` // the reason of a failure, if a pass has seen it
}

// maxFailed is the longest stored reason of a failure, in bytes.
const maxFailed = 100

// shortDigest is the digest of an object's text in the record.
func (o Object) shortDigest() string { return o.Digest[:min(len(o.Digest), 16)] }

// ran returns the entry of the record for an object and its text, or nil.
func (r Record) ran(o Object) *CompletedHook {
	for i := range r.Ran {
		if r.Ran[i].Object == o.String() && r.Ran[i].Digest == o.shortDigest() {
			return &r.Ran[i]
		}
	}
	return nil
}

// recordCompleted records a live object that must not be created again. While the object is being
// deleted, its health says nothing about its result, so the recorded result stays. The deletion can
// last: the controller of Jobs with a TTL deletes a Job in the foreground, after the Job's pods
// (ttlafterfinished).
func (r *Record) recordCompleted(o Object, live *unstructured.Unstructured) {
	if !runsOnce(live) || live.GetDeletionTimestamp() != nil && r.ran(o) != nil {
		return
	}
	now := CompletedHook{Object: o.String(), Digest: o.shortDigest()}
	health, why := HealthOf(live)
	if endStays := kindRules[live.GroupVersionKind().GroupKind()].endStays; health == Degraded || health == Waiting && endStays {
		now.Failed = strings.ToValidUTF8(why[:min(len(why), maxFailed)], "")
	}
	r.Ran = append(slices.DeleteFunc(slices.Clone(r.Ran), func(other CompletedHook) bool { return other.Object == now.Object }), now)
}

// runsOnce reports whether a live object disappears when its work is done, or is applied only once.
func runsOnce(live *unstructured.Unstructured) bool {
	if live.GetAnnotations()[onceAnnotation] == once {
		return true
	}
	expires := kindRules[live.GroupVersionKind().GroupKind()].expires
	return expires != nil && expires(fields{live.Object})
}

// canRunOnce reports whether the record may get an entry for an object (recordCompleted).
func canRunOnce(o Object) bool {
	return kindRules[o.gvk().GroupKind()].expires != nil || o.Body.GetAnnotations()[onceAnnotation] == once
}

// wantedRan returns Ran without unwanted objects.
func (r Record) wantedRan(objects []Object) []CompletedHook {
	names := map[string]bool{}
	for _, o := range objects {
		names[o.String()] = true
	}
	return slices.DeleteFunc(slices.Clone(r.Ran), func(ran CompletedHook) bool { return !names[ran.Object] })
}

// withoutHooks returns Ran without the hooks, which run again.
func (r Record) withoutHooks(objects []Object) []CompletedHook {
	hooks := map[string]bool{}
	for _, o := range objects {
		if len(o.Hook.events) > 0 {
			hooks[o.String()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(r.Ran), func(ran CompletedHook) bool { return hooks[ran.Object] })
}

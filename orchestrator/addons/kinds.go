package addons

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kindRule is the rule for the objects of a kind.
type kindRule struct {
	// health returns the health of a live object that is not being deleted. If health is nil, each
	// object of the kind is healthy.
	health func(fields) (Health, string)
	// expires reports whether Kubernetes deletes a live object by itself, now or when its work is
	// done. The add-on does not create the object again (runonce.go). If expires is nil, Kubernetes
	// deletes no object of the kind by itself.
	expires func(fields) bool
	// endStays means that Kubernetes deletes an ended object so late that a pass sees its end. So
	// if an object disappears before a pass has seen its end, it was not successful.
	endStays bool
}

// kindRules are the rules for the kinds of Kubernetes. An object of any other kind of Kubernetes is
// healthy when it exists, and does not expire. The sources are:
//   - Deployment, StatefulSet, DaemonSet: `kubectl rollout status`
//     (k8s.io/kubectl/pkg/polymorphichelpers/rollout_status.go);
//   - ReplicaSet, ReplicationController: kstatus
//     (sigs.k8s.io/cli-utils/pkg/kstatus/status/core.go);
//   - the other kinds: the comments of their types in k8s.io/api, and for expires the controllers
//     that delete them, which the entries name.
//
// docs/decisions/0064-addon-reconciliation.md compares the table with kstatus.
var kindRules = map[schema.GroupKind]kindRule{
	{Group: "apps", Kind: "Deployment"}:        {health: deploymentHealth},
	{Group: "apps", Kind: "StatefulSet"}:       {health: statefulSetHealth},
	{Group: "apps", Kind: "DaemonSet"}:         {health: daemonSetHealth},
	{Group: "apps", Kind: "ReplicaSet"}:        {health: replicaSetHealth},
	{Group: "", Kind: "ReplicationController"}: {health: replicaSetHealth},
	// pkg/controller/podgc deletes ended pods. A pod with restartPolicy Always should run for ever.
	// If it ended, for example by an eviction, and was deleted, the add-on creates it again.
	{Group: "", Kind: "Pod"}: {health: podHealth, expires: func(o fields) bool {
		phase := o.text("status", "phase")
		return (phase == "Succeeded" || phase == "Failed") && o.text("spec", "restartPolicy") != "Always"
	}},
	// pkg/controller/ttlafterfinished deletes a Job with this field after its end.
	{Group: "batch", Kind: "Job"}: {health: jobHealth, expires: func(o fields) bool {
		_, stated := o.number("spec", "ttlSecondsAfterFinished")
		return stated
	}},
	// pkg/controller/certificates/cleaner deletes it an hour after the answer, or 24 hours after
	// the creation without an answer.
	{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}: {health: signingRequestHealth, expires: always, endStays: true},
	// pkg/controller/certificates/cleaner deletes it 15 minutes after the creation.
	{Group: "certificates.k8s.io", Kind: "PodCertificateRequest"}: {health: func(o fields) (Health, string) { return requestHealth(o, "Issued") }, expires: always, endStays: true},
	// kube-apiserver stores events with a lease of --event-ttl, an hour by default
	{Group: "", Kind: "Event"}:              {expires: always},
	{Group: "events.k8s.io", Kind: "Event"}: {expires: always},
	// pkg/controlplane/controller/leaderelection deletes old LeaseCandidates.
	{Group: "coordination.k8s.io", Kind: "LeaseCandidate"}: {expires: always},
	// pkg/controller/resourcepoolstatusrequest deletes it an hour after the end of the request.
	{Group: "resource.k8s.io", Kind: "ResourcePoolStatusRequest"}:       {health: func(o fields) (Health, string) { return requestHealth(o, "Complete") }, expires: always, endStays: true},
	{Group: "storagemigration.k8s.io", Kind: "StorageVersionMigration"}: {health: func(o fields) (Health, string) { return requestHealth(o, "Succeeded") }},
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:   {health: definitionHealth},
	{Group: "apiregistration.k8s.io", Kind: "APIService"}: {health: func(o fields) (Health, string) {
		return healthyIf(o.condition("Available"), "does not answer yet")
	}},
	{Group: "", Kind: "PersistentVolumeClaim"}: {health: claimHealth},
	{Group: "", Kind: "PersistentVolume"}: {health: func(o fields) (Health, string) {
		if o.text("status", "phase") == "Failed" {
			return Degraded, "could not be reclaimed"
		}
		return Healthy, ""
	}},
	{Group: "", Kind: "Service"}: {health: serviceHealth},
}

func always(fields) bool { return true }

// customHealth judges an object of a kind that does not belong to Kubernetes, by the conditions
// that kstatus defines (Stalled, Reconciling), and by Ready. An object without these conditions is
// healthy.
func customHealth(o fields) (Health, string) {
	if c := o.condition("Stalled"); c.true() {
		return Degraded, c.why("is stalled")
	}
	if c := o.condition("Reconciling"); c.true() {
		return Waiting, c.why("is not ready yet")
	}
	if c := o.condition("Ready"); c != nil {
		return healthyIf(c, "is not ready yet")
	}
	return Healthy, ""
}

func deploymentHealth(o fields) (Health, string) {
	want, stated := o.number("spec", "replicas")
	if !stated {
		want = 1
	}
	if c := o.condition("Progressing"); c.text("reason") == "ProgressDeadlineExceeded" {
		return Degraded, c.why("makes no progress")
	}
	updated, _ := o.number("status", "updatedReplicas")
	all, _ := o.number("status", "replicas")
	available, _ := o.number("status", "availableReplicas")
	if !o.observed() || updated < want || all > updated || available < want {
		return Waiting, fmt.Sprintf("%d of %d pods are updated and available", min(updated, available), want)
	}
	return Healthy, ""
}

func statefulSetHealth(o fields) (Health, string) {
	want, stated := o.number("spec", "replicas")
	if !stated {
		want = 1
	}
	ready, _ := o.number("status", "readyReplicas")
	updated, _ := o.number("status", "updatedReplicas")
	mustUpdate := want
	if partition, _ := o.number("spec", "updateStrategy", "rollingUpdate", "partition"); partition > 0 {
		mustUpdate = max(want-partition, 0)
	}
	if o.text("spec", "updateStrategy", "type") == "OnDelete" {
		mustUpdate = 0
	}
	if !o.observed() || ready < want || updated < mustUpdate {
		return Waiting, fmt.Sprintf("%d of %d pods are ready, %d updated", ready, want, updated)
	}
	return Healthy, ""
}

func daemonSetHealth(o fields) (Health, string) {
	want, _ := o.number("status", "desiredNumberScheduled")
	updated, _ := o.number("status", "updatedNumberScheduled")
	available, _ := o.number("status", "numberAvailable")
	if o.text("spec", "updateStrategy", "type") == "OnDelete" {
		updated = want
	}
	if !o.observed() || updated < want || available < want {
		return Waiting, fmt.Sprintf("%d of %d pods are updated and available", min(updated, available), want)
	}
	return Healthy, ""
}

func replicaSetHealth(o fields) (Health, string) {
	want, stated := o.number("spec", "replicas")
	if !stated {
		want = 1
	}
	all, _ := o.number("status", "replicas")
	available, _ := o.number("status", "availableReplicas")
	if !o.observed() || all != want || available < want {
		return Waiting, o.condition("ReplicaFailure").why(fmt.Sprintf("%d of %d pods are available", available, want))
	}
	return Healthy, ""
}

func podHealth(o fields) (Health, string) {
	switch o.text("status", "phase") {
	case "Succeeded":
		return Healthy, ""
	case "Failed":
		return Degraded, "has failed" + o.failure()
	}
	if c := o.condition("PodScheduled"); c.false() {
		return Waiting, c.why("is not scheduled yet")
	}
	return healthyIf(o.condition("Ready"), "is not ready yet")
}

// failure returns why a pod failed, with a colon in front: the reason in the status of the pod, for
// example Evicted, or the first container that failed.
func (f fields) failure() string {
	reason, message := f.text("status", "reason"), oneLine(f.text("status", "message"))
	switch {
	case reason != "" && message != "":
		return ": " + reason + ": " + message
	case reason+message != "":
		return ": " + reason + message
	}
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		all, _, _ := unstructured.NestedSlice(f.object, "status", list)
		for _, entry := range all {
			fieldsOf, _ := entry.(map[string]any)
			container := fields{fieldsOf}
			if code, ended := container.number("state", "terminated", "exitCode"); ended && code != 0 {
				return fmt.Sprintf(": container %s ended with status %d", container.text("name"), code)
			}
		}
	}
	return ""
}

func jobHealth(o fields) (Health, string) {
	// FailureTarget precedes Failed, until the pods of the job have ended
	for _, condition := range []string{"Failed", "FailureTarget"} {
		if c := o.condition(condition); c.true() {
			return Degraded, c.why("has failed")
		}
	}
	if o.condition("Complete").true() || o.condition("Suspended").true() {
		return Healthy, ""
	}
	return Waiting, "is running"
}

func signingRequestHealth(o fields) (Health, string) {
	for _, end := range []struct{ condition, means string }{{"Denied", "was denied"}, {"Failed", "its signer has failed"}} {
		if c := o.condition(end.condition); c.true() {
			return Degraded, c.why(end.means)
		}
	}
	switch {
	case o.text("status", "certificate") != "":
		return Healthy, ""
	case o.condition("Approved").true():
		return Waiting, "is approved, and not signed yet"
	}
	return Waiting, "is not approved yet"
}

// requestHealth judges an object that ends with a condition: Failed, Denied, or, after success, the
// condition with the name done.
func requestHealth(o fields, done string) (Health, string) {
	if c := o.condition("Denied"); c.true() {
		return Degraded, c.why("was denied")
	}
	if c := o.condition("Failed"); c.true() {
		return Degraded, c.why("has failed")
	}
	return healthyIf(o.condition(done), "is not done yet")
}

func definitionHealth(o fields) (Health, string) {
	if c := o.condition("NamesAccepted"); c.false() {
		return Degraded, c.why("its names are taken")
	}
	return healthyIf(o.condition("Established"), "is not established yet")
}

func claimHealth(o fields) (Health, string) {
	switch o.text("status", "phase") {
	case "Bound":
		return Healthy, ""
	case "Lost":
		return Degraded, "has lost its volume"
	}
	return Waiting, "has no volume yet"
}

func serviceHealth(o fields) (Health, string) {
	addresses, _, _ := unstructured.NestedSlice(o.object, "status", "loadBalancer", "ingress")
	if o.text("spec", "type") == "LoadBalancer" && len(addresses) == 0 {
		return Waiting, "has no address yet"
	}
	return Healthy, ""
}

package extensions

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/admission/plugin/manifest"
)

// backend is the target of a call by the API server: a URL, or a port of a Service.
type backend struct {
	url             string
	namespace, name string
	port            int32
}

// observation is the state of the cluster's extensions at one moment.
type observation struct {
	webhooks    []webhook
	conversions []conversion
	services    []apiService
	terminating []namespace
	bindings    bool // a policy binding exists, in the API or in a file of sealed policies
	// requests of the system for which priority and fairness has no seat
	throttled []throttle
	flows     bool // a FlowSchema or a priority level is not Kubernetes' own
}

type webhook struct {
	// "ValidatingWebhookConfiguration", its name, and the name of the webhook within it
	kind, config, name string
	closed             bool // a failed call rejects the request (failurePolicy: Fail)
	backend            backend
}

type conversion struct {
	definition string
	backend    backend
	reads      []string // paths of its objects in each served version
}

// throttle is a request of the system that the server rejects with 429 (Too Many Requests), or for
// which the priority level has no seat.
type throttle struct {
	who           string // "kubelets"
	schema, level string // names of the FlowSchema and the PriorityLevelConfiguration
	// the FlowSchema, or the level, is an object of Kubernetes, which restores its content
	ownSchema, ownLevel bool
}

type apiService struct{ name, problem string } // problem: empty if the service is reachable

type namespace struct{ name, problem string } // problem: why its content cannot be deleted

// obstacle is an object that blocks requests.
type obstacle struct {
	object string // "ValidatingWebhookConfiguration policy"
	why    string
	// the arguments of `orlopctl kubernetes suspend`; empty if the object cannot be suspended
	suspend string
}

// calls are the results of recent calls: of webhooks by the API server, and of the API server by
// the system.
type calls struct {
	failed map[string]string // webhooks that the server could not call, by name
	// the last rejection of a request by the system; zero if there is none
	refused refusal
	// definitions with a converter that could not be called, by name
	unconverted map[string]string
}

// judge returns the obstacles. reach returns the reason why a backend cannot be reached, or "".
func judge(w observation, reach func(backend) string, recent calls) []obstacle {
	found := map[string]obstacle{}
	add := func(kind, name, why string) {
		object := kind + " " + name
		if _, known := found[object]; !known {
			found[object] = obstacle{object, why, strings.ToLower(kind) + " " + name}
		}
	}
	for _, h := range w.webhooks {
		dead := ""
		if h.closed {
			if dead = reach(h.backend); dead == "" {
				dead = recent.failed[h.name]
			}
		}
		switch refused := recent.refused; {
		case dead != "":
			add(h.kind, h.config, fmt.Sprintf("webhook %s rejects all requests in its scope, because it cannot be called: %s", h.name, dead))
		case refused.webhook == h.name && !refused.failed:
			add(h.kind, h.config, fmt.Sprintf("webhook %s rejects requests of the system in kube-system: %s", h.name, refused.why))
		}
	}
	if r := recent.refused; r.policy != "" {
		kind, name := r.object()
		if strings.HasSuffix(r.policy, manifest.StaticConfigSuffix) {
			found[kind+" "+name] = obstacle{object: kind + " " + name, why: fmt.Sprintf("policy %s of Cluster.spec.kubernetes.sealedPolicies rejects requests of the system in kube-system: %s", r.policy, r.why)}
		} else {
			add(kind, name, fmt.Sprintf("policy %s rejects requests of the system in kube-system: %s", r.policy, r.why))
		}
	}
	addThrottled(w.throttled, add)
	for _, c := range w.conversions {
		if dead := cmp.Or(reach(c.backend), recent.unconverted[c.definition]); dead != "" {
			add("CustomResourceDefinition", c.definition, "its objects cannot be read, because its converter cannot be called: "+dead)
		}
	}
	for _, s := range w.services {
		if s.problem != "" {
			add("APIService", s.name, "it cannot be reached: "+s.problem)
		}
	}
	// Objects that reject requests come first: policies, webhook configurations, priority levels.
	refuses := func(o obstacle) bool {
		return slices.ContainsFunc([]string{"Validating", "Mutating", flowSchema, priorityLevel}, func(kind string) bool { return strings.HasPrefix(o.object, kind) })
	}
	out := slices.SortedFunc(maps.Values(found), func(a, b obstacle) int {
		if refuses(a) != refuses(b) {
			return map[bool]int{true: -1, false: 1}[refuses(a)]
		}
		return strings.Compare(a.object, b.object)
	})
	return append(out, stuck(w.terminating)...)
}

// kinds of priority and fairness
const (
	flowSchema    = "FlowSchema"
	priorityLevel = "PriorityLevelConfiguration"
)

// addThrottled adds the objects by which the server rejects requests of the system. If the
// FlowSchema and the priority level are Kubernetes' own, the server has too much work, and no
// object is the cause.
func addThrottled(all []throttle, add func(kind, name, why string)) {
	callers := map[[2]string][]string{}
	for _, t := range all {
		object := [2]string{flowSchema, t.schema}
		if t.ownSchema {
			object = [2]string{priorityLevel, t.level}
		}
		if !t.ownSchema || !t.ownLevel {
			callers[object] = append(callers[object], t.who)
		}
	}
	for object, who := range callers {
		slices.Sort(who)
		add(object[0], object[1], "requests of "+strings.Join(who, ", ")+" get 429 (Too Many Requests), because their priority level has no seat for them")
	}
}

// stuck names the namespaces that cannot be deleted, grouped by reason.
func stuck(all []namespace) []obstacle {
	by := map[string][]string{}
	for _, n := range all {
		if n.problem != "" {
			by[n.problem] = append(by[n.problem], n.name)
		}
	}
	var out []obstacle
	for _, why := range slices.Sorted(maps.Keys(by)) {
		out = append(out, obstacle{object: some("Namespace", by[why]), why: "stays Terminating: " + why})
	}
	return out
}

// maxNamed is how many objects of a kind are named; the others are counted.
const maxNamed = 3

func some(kind string, names []string) string {
	slices.Sort(names)
	if len(names) == 1 {
		return kind + " " + names[0]
	}
	if rest := len(names) - maxNamed; rest > 0 {
		return fmt.Sprintf("%ss %s and %d more", kind, strings.Join(names[:maxNamed], ", "), rest)
	}
	return kind + "s " + strings.Join(names, ", ")
}

// lasting returns the obstacles that have persisted for minAge, so that a backend that restarts is
// not reported. first holds the time of the first sighting by object, and is updated.
func lasting(all []obstacle, first map[string]time.Time, now time.Time, minAge time.Duration) []obstacle {
	var out []obstacle
	present := map[string]bool{}
	for _, o := range all {
		present[o.object] = true
		if _, known := first[o.object]; !known {
			first[o.object] = now
		}
		if now.Sub(first[o.object]) >= minAge {
			out = append(out, o)
		}
	}
	maps.DeleteFunc(first, func(object string, _ time.Time) bool { return !present[object] })
	return out
}

// maxText is the maximum length of the announced text, in bytes. A message can have 500 bytes
// (pkg/service/notify), and the remedy follows the text.
const maxText = 420

// reasonLengths are the maximum lengths of a reason, in bytes. The function text tries them in this
// order until all objects fit.
var reasonLengths = []int{150, 80, 40, 0}

// text returns the announced text: the name of each object, with its reason as far as the reason
// fits, and the remedy.
func text(all []obstacle) string {
	if len(all) == 0 {
		return ""
	}
	joined := ""
	for _, most := range reasonLengths {
		if joined = join(all, most); len(joined) <= maxText {
			break
		}
	}
	for n := len(all) - 1; n > 0 && len(joined) > maxText; n-- {
		joined = fmt.Sprintf("%s; and %d more", join(all[:n], 0), len(all)-n)
	}
	if slices.ContainsFunc(all, func(o obstacle) bool { return o.suspend != "" }) {
		joined += "; suspend an object with `orlopctl kubernetes suspend`"
	}
	return joined
}

func join(all []obstacle, most int) string {
	var parts []string
	for _, o := range all {
		if most == 0 {
			parts = append(parts, o.object)
		} else {
			parts = append(parts, o.object+": "+short(o.why, most))
		}
	}
	return strings.Join(parts, "; ")
}

func short(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

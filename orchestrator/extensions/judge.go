package extensions

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// backend is what the API server calls: a URL, or a port of a Service.
type backend struct {
	url             string
	namespace, name string
	port            int32
}

// world is what the cluster's extensions are at one moment.
type world struct {
	webhooks    []webhook
	conversions []conversion
	services    []apiService
	terminating []namespace
	bindings    bool // a policy is in force
}

type webhook struct {
	// "ValidatingWebhookConfiguration", its name, and the webhook's within it
	kind, config, name string
	closed             bool // a failed call refuses the request (failurePolicy: Fail)
	backend            backend
}

type conversion struct {
	definition string
	backend    backend
}

type apiService struct{ name, problem string } // problem is empty when the server reaches it

type namespace struct{ name, problem string } // problem: why its content cannot be deleted

// obstacle is one object that holds up requests.
type obstacle struct {
	object string // "ValidatingWebhookConfiguration policy"
	why    string
	// the arguments of `orlopctl kubernetes suspend`; empty where nothing can be suspended
	suspend string
}

// judge returns the obstacles. reach says why a backend cannot be reached; refused is what the
// server answered to a request of the system, and failed which webhooks it could not call lately,
// by name.
func judge(w world, reach func(backend) string, failed map[string]string, refused refusal) []obstacle {
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
				dead = failed[h.name]
			}
		}
		switch {
		case dead != "":
			add(h.kind, h.config, fmt.Sprintf("webhook %s refuses what it is asked about, because it cannot be called: %s", h.name, dead))
		case refused.webhook == h.name && !refused.failed:
			add(h.kind, h.config, fmt.Sprintf("webhook %s refuses requests of the system in kube-system: %s", h.name, refused.why))
		}
	}
	if refused.binding != "" {
		kind := "ValidatingAdmissionPolicyBinding"
		add(kind, refused.binding, fmt.Sprintf("policy %s refuses requests of the system in kube-system: %s", refused.policy, refused.why))
	}
	for _, c := range w.conversions {
		if dead := reach(c.backend); dead != "" {
			add("CustomResourceDefinition", c.definition, "its objects cannot be read, because its converter cannot be called: "+dead)
		}
	}
	for _, s := range w.services {
		if s.problem != "" {
			add("APIService", s.name, "it cannot be reached: "+s.problem)
		}
	}
	// What refuses requests comes first: bindings of policies and webhook configurations.
	refuses := func(o obstacle) bool {
		return strings.HasPrefix(o.object, "Validating") || strings.HasPrefix(o.object, "Mutating")
	}
	out := slices.SortedFunc(maps.Values(found), func(a, b obstacle) int {
		if refuses(a) != refuses(b) {
			return map[bool]int{true: -1, false: 1}[refuses(a)]
		}
		return strings.Compare(a.object, b.object)
	})
	return append(out, stuck(w.terminating)...)
}

// stuck names the namespaces that cannot be deleted, those with the same reason together.
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

// maxNamed is how many objects of one kind are named; the others are counted.
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

// lasting keeps the obstacles that have been there for some time: a backend that starts anew is
// none. first is when each was seen first, by object, and is brought up to date.
func lasting(all []obstacle, first map[string]time.Time, now time.Time, patience time.Duration) []obstacle {
	var out []obstacle
	present := map[string]bool{}
	for _, o := range all {
		present[o.object] = true
		if _, known := first[o.object]; !known {
			first[o.object] = now
		}
		if now.Sub(first[o.object]) >= patience {
			out = append(out, o)
		}
	}
	maps.DeleteFunc(first, func(object string, _ time.Time) bool { return !present[object] })
	return out
}

// maxText is the length of what is announced, in bytes: a message carries 500 (pkg/notify), and
// what can be done comes after it.
const maxText = 420

// whys are the lengths to which reasons are cut, in bytes, until all objects fit.
var whys = []int{150, 80, 40, 0}

// text is what is announced: each object by name, with as much of the reasons as fits, and what can
// be done.
func text(all []obstacle) string {
	if len(all) == 0 {
		return ""
	}
	joined := ""
	for _, most := range whys {
		if joined = join(all, most); len(joined) <= maxText {
			break
		}
	}
	for n := len(all) - 1; n > 0 && len(joined) > maxText; n-- {
		joined = fmt.Sprintf("%s; and %d more", join(all[:n], 0), len(all)-n)
	}
	if slices.ContainsFunc(all, func(o obstacle) bool { return o.suspend != "" }) {
		joined += "; `orlopctl kubernetes suspend` takes one out"
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

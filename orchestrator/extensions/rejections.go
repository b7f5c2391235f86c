package extensions

import (
	"maps"
	"regexp"
	"strings"
	"sync"
	"time"
)

// retention is how long a webhook counts as failing after its last failed call.
const retention = time.Minute

// maxRetained bounds the number of webhooks in the log.
const maxRetained = 256

// RejectionLog records the webhooks that the API server could not call. The zero value is ready. It
// is safe for concurrent use.
type RejectionLog struct {
	mu     sync.Mutex
	failed map[string]failure // by the name of the webhook
}

type failure struct {
	why string
	at  time.Time
}

// Note records an error with which admission rejected a request.
func (r *RejectionLog) Note(err error) {
	refusal := parse(err.Error())
	if refusal.webhook == "" || !refusal.failed {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = map[string]failure{}
	}
	if _, known := r.failed[refusal.webhook]; known || len(r.failed) < maxRetained {
		r.failed[refusal.webhook] = failure{refusal.why, time.Now()}
	}
}

// recent returns the reasons of webhooks that failed within the last minute, by name.
func (r *RejectionLog) recent(now time.Time) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.failed, func(_ string, f failure) bool { return now.Sub(f.at) > retention })
	out := map[string]string{}
	for name, f := range r.failed {
		out[name] = f.why
	}
	return out
}

// refusal is a parsed error of admission.
type refusal struct {
	webhook         string // its name within its configuration
	failed          bool   // the webhook could not be called
	policy, binding string
	mutates         bool // the policy is a MutatingAdmissionPolicy
	why             string
}

// object returns the kind and the name of the policy object that is the cause: the binding, or the
// policy if it rejects requests without a binding, because it cannot be evaluated.
func (r refusal) object() (kind, name string) {
	kind = "ValidatingAdmissionPolicy"
	if r.mutates {
		kind = "MutatingAdmissionPolicy"
	}
	if r.binding == "" {
		return kind, r.policy
	}
	return kind + "Binding", r.binding
}

// The errors of upstream's plugins (apiserver/pkg/util/webhook/error.go,
// admission/plugin/webhook/errors/statuserror.go, admission/plugin/policy/validating/dispatcher.go
// and .../policy/generic/policy_dispatcher.go).
var (
	callFailed    = regexp.MustCompile(`failed calling webhook "([^"]+)": (.*)`)
	webhookDenied = regexp.MustCompile(`admission webhook "([^"]+)" denied the request(.*)`)
	// validating policies have their kind in the message, mutating policies do not
	policyDenied = regexp.MustCompile(`(ValidatingAdmissionPolicy|policy) ['"]([^'"]+)['"](?: with binding '([^']+)')? denied request: (.*)`)
)

// parse parses the text of an error. It returns the zero value if no webhook or policy is the cause
// of the error.
func parse(text string) refusal {
	text = strings.Join(strings.Fields(text), " ")
	if m := callFailed.FindStringSubmatch(text); m != nil {
		return refusal{webhook: m[1], failed: true, why: m[2]}
	}
	if m := webhookDenied.FindStringSubmatch(text); m != nil {
		return refusal{webhook: m[1], why: strings.Trim(m[2], ": ")}
	}
	if m := policyDenied.FindStringSubmatch(text); m != nil {
		return refusal{mutates: m[1] == "policy", policy: m[2], binding: m[3], why: m[4]}
	}
	return refusal{}
}

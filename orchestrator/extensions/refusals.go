package extensions

import (
	"maps"
	"regexp"
	"strings"
	"sync"
	"time"
)

// remembered is how long after the last failed call of a webhook it is taken for one that fails.
const remembered = time.Minute

// maxRemembered bounds what is kept; there are as many names as webhooks.
const maxRemembered = 256

// RejectionLog remembers which webhooks the API server could not call. The zero value is ready. It is
// for several goroutines.
type RejectionLog struct {
	mu     sync.Mutex
	failed map[string]failure // by the webhook's name
}

type failure struct {
	why string
	at  time.Time
}

// Note takes an error with which admission ended a request.
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
	if _, known := r.failed[refusal.webhook]; known || len(r.failed) < maxRemembered {
		r.failed[refusal.webhook] = failure{refusal.why, time.Now()}
	}
}

// lately are the reasons of those that failed within the last minute, by the webhook's name.
func (r *RejectionLog) lately(now time.Time) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.failed, func(_ string, f failure) bool { return now.Sub(f.at) > remembered })
	out := map[string]string{}
	for name, f := range r.failed {
		out[name] = f.why
	}
	return out
}

// refusal is what an error of admission says.
type refusal struct {
	webhook         string // its name within its configuration
	failed          bool   // it could not be called
	policy, binding string
	why             string
}

// The errors of upstream's plugins (apiserver/pkg/util/webhook/error.go,
// admission/plugin/webhook/errors/statuserror.go, admission/plugin/policy/validating/dispatcher.go
// and .../policy/generic/policy_dispatcher.go).
var (
	callFailed    = regexp.MustCompile(`failed calling webhook "([^"]+)": (.*)`)
	webhookDenied = regexp.MustCompile(`admission webhook "([^"]+)" denied the request(.*)`)
	policyDenied  = regexp.MustCompile(`(?:ValidatingAdmissionPolicy|policy) '([^']+)' with binding '([^']+)' denied request: (.*)`)
)

// parse reads the text of an error; the zero value means that no third party is to blame.
func parse(text string) refusal {
	text = strings.Join(strings.Fields(text), " ")
	if m := callFailed.FindStringSubmatch(text); m != nil {
		return refusal{webhook: m[1], failed: true, why: m[2]}
	}
	if m := webhookDenied.FindStringSubmatch(text); m != nil {
		return refusal{webhook: m[1], why: strings.Trim(m[2], ": ")}
	}
	if m := policyDenied.FindStringSubmatch(text); m != nil {
		return refusal{policy: m[1], binding: m[2], why: m[3]}
	}
	return refusal{}
}

package config

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// These limits are those of the API server (k8s.io/apiserver/pkg/apis/apiserver/validation), or
// lower to keep requests fast.
const (
	maxIssuers  = 64
	maxWebhooks = 16
	maxMatches  = 63 // of 64 in the API server; machined adds one (machined/credentials)
)

// accessValidator checks the settings for the authentication and authorization of the API server.
type accessValidator struct{ checks }

func (v accessValidator) authentication(path string, a *Authentication) {
	if len(a.JWT) > maxIssuers {
		v.on(path+".jwt", wrong{reason: fmt.Sprintf("%d issuers", len(a.JWT)), expected: fmt.Sprintf("at most %d", maxIssuers)})
	}
	urls := map[string]int{}
	discoveries := map[string]int{}
	for i := range a.JWT {
		at, j := fmt.Sprintf("%s.jwt[%d]", path, i), &a.JWT[i]
		v.issuer(at, j)
		v.unique(at+".url", "jwt", j.URL, i, urls)
		v.unique(at+".discoveryURL", "jwt", j.DiscoveryURL, i, discoveries)
	}
	if w := a.Webhook; w != nil {
		v.webhook(path+".webhook", w.URL, w.Client)
		v.bundle(path+".webhook.ca", w.CA)
	}
}

func (v accessValidator) issuer(path string, j *JWTIssuer) {
	v.https(path+".url", j.URL)
	v.https(path+".discoveryURL", j.DiscoveryURL)
	v.bundle(path+".ca", j.CA)
	if j.DiscoveryURL != "" && strings.TrimRight(j.DiscoveryURL, "/") == strings.TrimRight(j.URL, "/") {
		v.on(path+".discoveryURL", wrong{reason: "the same as url", hint: "remove it"})
	}
	if len(j.Audiences) == 0 {
		v.on(path+".audiences", wrong{reason: "is empty", expected: "at least one audience, or every token of the issuer would be accepted"})
	}
	for i, aud := range j.Audiences {
		if slices.Contains(j.Audiences[:i], aud) && aud != "" {
			v.on(fmt.Sprintf("%s.audiences[%d]", path, i), wrong{reason: fmt.Sprintf("%s is given twice", quote(aud))})
		}
	}
	v.expression(path+".username", j.Username, "claims")
	v.expression(path+".groups", j.Groups, "claims")
	v.expression(path+".uid", j.UID, "claims")
	for key, expression := range j.Extra {
		at := path + `.extra["` + shorten(key) + `"]`
		v.extraKey(at, key)
		v.expression(at, expression, "claims")
	}
	v.rules(path+".claimRules", j.ClaimRules, "claims")
	v.rules(path+".userRules", j.UserRules, "user")
	v.verifiedEmail(path, j)
}

// verifiedEmail requires that an expression uses claims.email_verified if Username uses
// claims.email, because many issuers accept any address that a user enters. The API server has the
// same rule.
func (v accessValidator) verifiedEmail(path string, j *JWTIssuer) {
	if !strings.Contains(strings.ReplaceAll(j.Username, "claims.email_verified", ""), "claims.email") {
		return
	}
	texts := []string{j.Username}
	for _, expression := range j.Extra {
		texts = append(texts, expression)
	}
	for _, r := range j.ClaimRules {
		texts = append(texts, r.Expression)
	}
	if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "email_verified") }) {
		v.on(path+".username", wrong{
			reason: "claims.email is used, but claims.email_verified is not checked", expected: "a claim rule that checks it",
			hint: `add to claimRules: expression: "claims.?email_verified.orValue(true) == true"`,
		})
	}
}

func (v accessValidator) rules(path string, rules []Rule, variable string) {
	seen := map[string]int{}
	for i, r := range rules {
		at := fmt.Sprintf("%s[%d].expression", path, i)
		v.expression(at, r.Expression, variable)
		v.unique(at, path[strings.LastIndexByte(path, '.')+1:], r.Expression, i, seen)
	}
}

// extraKey validates the key of an extra attribute: a domain and a path, in lower case. The domain
// must not belong to Kubernetes.
func (v accessValidator) extraKey(path, key string) {
	domain, rest, found := strings.Cut(key, "/")
	reserved := false
	for _, own := range []string{"k8s.io", "kubernetes.io"} {
		reserved = reserved || domain == own || strings.HasSuffix(domain, "."+own)
	}
	switch {
	case !found || rest == "" || hostname(domain) != nil || key != strings.ToLower(key):
		v.on(path, wrong{reason: "the key is not a domain with a path in lower case", expected: "such as example.org/team"})
	case reserved:
		v.on(path, wrong{reason: "the key belongs to Kubernetes", expected: "a domain of your own, such as example.org/team"})
	}
}

// expression validates a CEL expression as far as possible without a CEL compiler, which PID 1 does
// not link: brackets and quotes must be closed, and the variable must occur. The API server
// validates the rest.
func (v accessValidator) expression(path, text, variable string) {
	if text == "" {
		return
	}
	if problem := brackets(text); problem != "" {
		v.on(path, wrong{reason: problem, expected: "an expression in CEL"})
		return
	}
	if !strings.Contains(text, variable) {
		w := wrong{reason: fmt.Sprintf("the variable %s does not occur", variable), expected: "an expression in CEL over " + variable}
		if text != "true" && text != "false" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" {
			w.nearest = variable + "." + text
		}
		v.on(path, w)
	}
}

// brackets returns the problem with unbalanced brackets or quotes in an expression; "" without a
// problem. Quotes are ' and ". Within quotes, \ escapes the next character.
func brackets(text string) string {
	var open []rune
	var quoted rune
	escaped := false
	for _, r := range text {
		switch {
		case escaped:
			escaped = false
		case quoted != 0 && r == '\\':
			escaped = true
		case quoted != 0:
			if r == quoted {
				quoted = 0
			}
		case r == '\'' || r == '"':
			quoted = r
		case r == '(' || r == '[' || r == '{':
			open = append(open, map[rune]rune{'(': ')', '[': ']', '{': '}'}[r])
		case r == ')' || r == ']' || r == '}':
			if len(open) == 0 || open[len(open)-1] != r {
				return fmt.Sprintf("the bracket %q was not opened", r)
			}
			open = open[:len(open)-1]
		}
	}
	switch {
	case quoted != 0:
		return fmt.Sprintf("the quote %c is not closed", quoted)
	case len(open) > 0:
		return fmt.Sprintf("the bracket %q is missing", open[len(open)-1])
	}
	return ""
}

func (v accessValidator) authorization(path string, a *Authorization) {
	if len(a.Webhooks) > maxWebhooks {
		v.on(path+".webhooks", wrong{reason: fmt.Sprintf("%d services", len(a.Webhooks)), expected: fmt.Sprintf("at most %d", maxWebhooks)})
	}
	names := map[string]int{}
	for i := range a.Webhooks {
		at, w := fmt.Sprintf("%s.webhooks[%d]", path, i), &a.Webhooks[i]
		v.objectName(at+".name", w.Name)
		v.unique(at+".name", "webhooks", w.Name, i, names)
		v.webhook(at, w.URL, w.Client)
		v.bundle(at+".ca", w.CA)
		v.duration(at+".timeout", w.Timeout, 30*time.Second)
		v.duration(at+".authorizedTTL", w.AuthorizedTTL, time.Hour)
		v.duration(at+".unauthorizedTTL", w.UnauthorizedTTL, time.Hour)
		if len(w.MatchConditions) > maxMatches {
			v.on(at+".matchConditions", wrong{reason: fmt.Sprintf("%d conditions", len(w.MatchConditions)), expected: fmt.Sprintf("at most %d", maxMatches)})
		}
		conditions := map[string]int{}
		for k, c := range w.MatchConditions {
			path := fmt.Sprintf("%s.matchConditions[%d]", at, k)
			v.expression(path, c, "request")
			v.unique(path, "matchConditions", c, k, conditions)
		}
	}
}

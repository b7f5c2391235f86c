package main

import (
	"crypto/x509"
	"encoding/base64"
	"regexp"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
)

// What redact knows by its form. Machines give readers no secret on purpose; this is for what a
// program has let slip into a log or an error. A secret without a form (a password, 32 random
// bytes) is not found by it.
var (
	// keyEdge is the first or the last line of a private key in PEM (RFC 7468), as OpenSSH and
	// OpenPGP write it, too.
	keyEdge = regexp.MustCompile(`-----(BEGIN|END) (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----`)
	// longBase64 may be a private key that was encoded in one piece, as in a kubeconfig.
	longBase64 = regexp.MustCompile(`[A-Za-z0-9+/]{40,}={0,2}`)
	// webToken is a signed JSON web token (RFC 7515, section 7.1), as service accounts have: its
	// first part encodes {".
	webToken = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`)
	// urlPassword is a name and a password in a URL (RFC 3986, section 3.2.1).
	urlPassword = regexp.MustCompile(`://[^/\s:@"]*:[^/\s@"]+@`)
)

// maxKeyLines is the length in lines up to which a private key is looked for: RSA with 8192 bits
// has 102.
const maxKeyLines = 128

// redact replaces what looks like a secret by config.Redacted and says how often.
func redact(text string) (clean string, count int) {
	clean, count = redactKeys(text)
	replace := func(form *regexp.Regexp, by string, is func(string) bool) {
		clean = form.ReplaceAllStringFunc(clean, func(found string) string {
			if !is(found) {
				return found
			}
			count++
			return by
		})
	}
	always := func(string) bool { return true }
	replace(webToken, config.Redacted, always)
	replace(urlPassword, "://"+config.Redacted+"@", always)
	replace(longBase64, config.Redacted, encodesKey)
	return clean, count
}

// redactKeys replaces private keys in PEM, whatever stands before and after their lines. Of one
// whose other end is missing it takes the maxKeyLines lines that may belong to it.
func redactKeys(text string) (clean string, count int) {
	var out strings.Builder
	edges := keyEdge.FindAllStringSubmatchIndex(text, -1)
	begins := func(edge []int) bool { return text[edge[2]:edge[3]] == "BEGIN" }
	done := 0 // what is before has been copied or left out
	for i, edge := range edges {
		if edge[0] < done {
			continue
		}
		from, to := edge[0], edge[1]
		if begins(edge) {
			to = linesAfter(text, edge[1], maxKeyLines+1) // its own one is the first
			for _, other := range edges[i+1:] {
				if other[0] >= to {
					break
				}
				if !begins(other) {
					to = other[1]
					break
				}
			}
		} else {
			from = max(done, linesBefore(text, edge[0], maxKeyLines))
		}
		out.WriteString(text[done:from])
		out.WriteString(config.Redacted)
		done = to
		count++
	}
	out.WriteString(text[done:])
	return out.String(), count
}

// derSequence is the first byte of every key in DER (X.690, section 8.9).
const derSequence = 0x30

// linesAfter is where the n-th line break after a place is, or the end.
func linesAfter(text string, at, n int) int {
	for ; n > 0; n-- {
		next := strings.IndexByte(text[at:], '\n')
		if next < 0 {
			return len(text)
		}
		at += next + 1
	}
	return at - 1
}

// linesBefore is where the line begins that is n before that of a place, or the beginning.
func linesBefore(text string, at, n int) int {
	for ; n >= 0; n-- {
		at = strings.LastIndexByte(text[:max(at, 0)], '\n')
		if at < 0 {
			return 0
		}
	}
	return at + 1
}

// encodesKey tells whether base64 is that of a private key, in PEM or in DER.
func encodesKey(text string) bool {
	text = strings.TrimRight(text, "=")
	if len(text)%4 == 1 {
		text = text[:len(text)-1]
	}
	key, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil || len(key) == 0 {
		return false // nothing comes here that is none
	}
	if key[0] != derSequence {
		return keyEdge.Match(key)
	}
	_, pkcs8 := x509.ParsePKCS8PrivateKey(key)
	_, sec1 := x509.ParseECPrivateKey(key)
	_, pkcs1 := x509.ParsePKCS1PrivateKey(key)
	return pkcs8 == nil || sec1 == nil || pkcs1 == nil
}

// redactValue is redact for every text in a value of JSON. Texts in a list are lines to it: those
// of a log are.
func redactValue(value any) (clean any, count int) {
	switch v := value.(type) {
	case string:
		return redact(v)
	case map[string]any:
		for key, field := range v {
			part, n := redactValue(field)
			v[key] = part
			count += n
		}
	case []any:
		if lines, ok := texts(v); ok {
			text, n := redact(strings.Join(lines, "\n"))
			if n == 0 {
				return v, 0
			}
			v = v[:0:0]
			for line := range strings.SplitSeq(text, "\n") {
				v = append(v, line)
			}
			return v, n
		}
		for i, item := range v {
			part, n := redactValue(item)
			v[i] = part
			count += n
		}
		return v, count
	}
	return value, count
}

// texts are the items of a list, if all are texts.
func texts(list []any) (lines []string, ok bool) {
	for _, item := range list {
		line, is := item.(string)
		if !is {
			return nil, false
		}
		lines = append(lines, line)
	}
	return lines, len(lines) > 0
}

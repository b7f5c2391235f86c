package main

import (
	"crypto/x509"
	"encoding/base64"
	"regexp"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
)

// The patterns of redact. Machines return no secret to readers. redact finds secrets that a program
// has written to a log or an error by mistake. It cannot find a secret without a pattern (a
// password, 32 random bytes).
var (
	// keyEdge matches the first or the last line of a private key in PEM (RFC 7468), including the
	// forms of OpenSSH and OpenPGP.
	keyEdge = regexp.MustCompile(`-----(BEGIN|END) (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----`)
	// longBase64 matches a long text in base64, which may be an encoded private key, as in a
	// kubeconfig.
	longBase64 = regexp.MustCompile(`[A-Za-z0-9+/]{40,}={0,2}`)
	// webToken matches a signed JSON web token (RFC 7515, section 7.1), for example of a service
	// account. Its first part begins with eyJ, the encoding of {".
	webToken = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`)
	// urlPassword matches a name and a password in a URL (RFC 3986, section 3.2.1).
	urlPassword = regexp.MustCompile(`://[^/\s:@"]*:[^/\s@"]+@`)
)

// maxKeyLines is the maximum number of lines of a private key. RSA with 8192 bits has 102.
const maxKeyLines = 128

// redact replaces each probable secret by config.Redacted, and returns the number of secrets.
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

// redactKeys replaces private keys in PEM, even if each line has other text before or after it. If
// the beginning or the end of a key is missing, redactKeys replaces the maxKeyLines lines that may
// belong to the key.
func redactKeys(text string) (clean string, count int) {
	var out strings.Builder
	edges := keyEdge.FindAllStringSubmatchIndex(text, -1)
	begins := func(edge []int) bool { return text[edge[2]:edge[3]] == "BEGIN" }
	done := 0 // the text before this position is copied or dropped
	for i, edge := range edges {
		if edge[0] < done {
			continue
		}
		from, to := edge[0], edge[1]
		if begins(edge) {
			// The line of the beginning counts as the first line.
			to = linesAfter(text, edge[1], maxKeyLines+1)
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

// derSequence is the first byte of every private key in DER (X.690, section 8.9).
const derSequence = 0x30

// linesAfter returns the position of the n-th line break after a position, or the length of the
// text if there are fewer.
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

// linesBefore returns the start of the line n lines before a position, or 0 if there are fewer
// lines.
func linesBefore(text string, at, n int) int {
	for ; n >= 0; n-- {
		at = strings.LastIndexByte(text[:max(at, 0)], '\n')
		if at < 0 {
			return 0
		}
	}
	return at + 1
}

// encodesKey reports whether a base64 text encodes a private key in PEM or in DER.
func encodesKey(text string) bool {
	text = strings.TrimRight(text, "=")
	if len(text)%4 == 1 {
		text = text[:len(text)-1]
	}
	key, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil || len(key) == 0 {
		return false // not possible: the pattern matches only base64
	}
	if key[0] != derSequence {
		return keyEdge.Match(key)
	}
	_, pkcs8 := x509.ParsePKCS8PrivateKey(key)
	_, sec1 := x509.ParseECPrivateKey(key)
	_, pkcs1 := x509.ParsePKCS1PrivateKey(key)
	return pkcs8 == nil || sec1 == nil || pkcs1 == nil
}

// redactValue applies redact to every text in a JSON value. It joins the texts of a list with line
// breaks first: a log is a list of lines, and a key can extend over several of these lines.
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

// texts returns the items of a list as texts. ok is false if the list is empty or an item is no
// text.
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

package approval

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/orlop-os/orlop/pkg/pki"
)

// Describe returns the lines that an approver reads before signing. explain is the description of
// the method; it may be empty. A certificate in a value is replaced by its subject, its fingerprint
// and its expiry.
func (r Request) Describe(explain string) []string {
	lines := []string{"call: " + r.Call}
	if explain != "" {
		lines = append(lines, "      "+explain)
	}
	for _, m := range r.Machines {
		lines = append(lines, "machine: "+strings.TrimSpace(m.Name+" "+m.Key))
	}
	for _, name := range r.Fields() {
		value := summary(r.Content[name])
		switch {
		case value == "":
			lines = append(lines, name+": removed or empty")
		case !strings.Contains(value, "\n"):
			lines = append(lines, name+": "+value)
		default:
			lines = append(lines, name+":")
			for line := range strings.SplitSeq(value, "\n") {
				lines = append(lines, "  "+line)
			}
		}
	}
	return append(lines, fmt.Sprintf("valid: from %s to %s (%v), once on each machine", stamp(r.NotBefore), stamp(r.Expires), r.Expires.Sub(r.NotBefore).Round(time.Second)))
}

// summary returns a value with its certificates replaced, and without control characters, which
// could hide a part of the text on a terminal.
func summary(value string) string {
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(value, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		if strings.TrimSpace(lines[i]) == "-----BEGIN CERTIFICATE-----" || strings.HasSuffix(lines[i], " -----BEGIN CERTIFICATE-----") {
			if text, last := certificate(lines[i:]); last > 0 {
				indent := lines[i][:strings.Index(lines[i], "-----")]
				out.WriteString(indent + text + "\n")
				i += last
				continue
			}
		}
		out.WriteString(lines[i] + "\n")
	}
	return strings.TrimRight(strings.Map(visible, out.String()), "\n")
}

// certificate returns the description of the certificate in the first lines, and the index of its
// last line; 0 if the lines have none.
func certificate(lines []string) (text string, last int) {
	var block strings.Builder
	for i, line := range lines {
		block.WriteString(strings.TrimSpace(line[max(0, strings.Index(line, "-----BEGIN")):]) + "\n")
		if strings.TrimSpace(line) != "-----END CERTIFICATE-----" {
			continue
		}
		p, _ := pem.Decode([]byte(block.String()))
		if p == nil {
			return "", 0
		}
		c, err := x509.ParseCertificate(p.Bytes)
		if err != nil {
			return "", 0
		}
		return fmt.Sprintf("certificate %s (%s, until %s)", c.Subject, pki.Fingerprint(c), stamp(c.NotAfter)), i
	}
	return "", 0
}

// visible maps control characters, and characters that change the direction of a text, to "?".
func visible(r rune) rune {
	if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
		return '?'
	}
	return r
}

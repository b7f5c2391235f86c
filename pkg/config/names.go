package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// dnsLabel validates a label of RFC 1123 in lower case: letters, digits and "-", not at the ends,
// at most 63 characters.
func dnsLabel(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > 63:
		return fmt.Errorf("has %d characters", len(s))
	case s[0] == '-' || s[len(s)-1] == '-':
		return errors.New(`begins or ends with "-"`)
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
		default:
			return fmt.Errorf("contains %q", r)
		}
	}
	return nil
}

// hostname validates a DNS name in lower case: labels separated by dots, at most 253 characters.
func hostname(s string) error {
	if len(s) > 253 {
		return fmt.Errorf("has %d characters", len(s))
	}
	for label := range strings.SplitSeq(s, ".") {
		if err := dnsLabel(label); err != nil {
			if label != s && (label == "" || len(label) > 63) {
				return fmt.Errorf("has a part between dots that %w", err)
			}
			return err
		}
	}
	return nil
}

// hostOrAddr validates a DNS name or an IP address without a zone. It rejects a name with a number
// as its last label, because such a name is probably a mistyped address.
func hostOrAddr(s string) error {
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Zone() != "" {
			return errors.New("has a zone")
		}
		return nil
	}
	if err := hostname(s); err != nil {
		return err
	}
	last := s[strings.LastIndexByte(s, '.')+1:]
	if number, rest := splitNumber(last); number != "" && rest == "" {
		return errors.New("ends with a number but is not an IP address")
	}
	return nil
}

// nearest returns the candidate that is most similar to name, or "" if no candidate is similar. A
// candidate that differs only in case has priority. Of the other candidates, at most a third of the
// characters of name may differ.
func nearest(name string, candidates []string) string {
	const longest = 64 // a longer name gets no candidate
	if len(name) > longest {
		return ""
	}
	best, bestDistance := "", len(name)/3+1
	for _, c := range candidates {
		if strings.EqualFold(c, name) {
			return c
		}
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance counts the insertions, deletions, replacements and swaps of adjacent characters from a
// to b (optimal string alignment). It compares bytes, because the known names are ASCII.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

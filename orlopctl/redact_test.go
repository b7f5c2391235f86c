package main

import (
	"reflect"
	"strings"
	"testing"
)

// TestRedact checks the text and the number of replaced secrets that redact returns. It replaces
// private keys in PEM, also without the line BEGIN or END, web tokens, and the user and password of
// a URL.
func TestRedact(t *testing.T) {
	body := "MHcCAQEEIP\nabcdefghij\n"
	begin, end := "-----BEGIN EC PRIVATE KEY-----\n", "-----END EC PRIVATE KEY-----\n"
	many := strings.Repeat("line\n", maxKeyLines)
	token := "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0AAAA.c2lnbmF0dXJlLW9m_-MTIz"
	for _, c := range []struct {
		name, text, want string
		count            int
	}{
		{"empty text", "", "", 0},
		{"log with a certificate", "one\ntwo -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "one\ntwo -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", 0},
		{"key", "one\n" + begin + body + end + "two\n", "one\n(redacted)\ntwo\n", 1},
		{"two keys", begin + body + end + "and\n" + begin + body + end, "(redacted)\nand\n(redacted)\n", 2},
		{"key in lines with a time", "12:00  " + begin + "12:00  MHcC\n12:01  other\n12:00  " + end + "two\n", "12:00  (redacted)\ntwo\n", 1},
		{"key of OpenPGP", "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----", "(redacted)", 1},
		{"key inside another key", begin + begin + body + end + end + "two", "(redacted)(redacted)\ntwo", 2},
		{"key without END", "one\n" + begin + body, "one\n(redacted)", 1},
		{"key without END, before many lines", "one\n" + begin + many + "two\n", "one\n(redacted)\ntwo\n", 1},
		{"key without BEGIN", body + end + "two\n", "(redacted)\ntwo\n", 1},
		{"key without BEGIN, after many lines", "one\n" + many + end + "two\n", "one\n(redacted)\ntwo\n", 1},
		{"web token", "Bearer " + token + ", and", "Bearer (redacted), and", 1},
		{"URL with a password", "proxy http://dora:s3cret@10.0.0.1:80/x", "proxy http://(redacted)@10.0.0.1:80/x", 1},
		{"URLs without a password", "https://[fd00::1]:6443/a@b https://10.0.0.1:6443/a@b", "https://[fd00::1]:6443/a@b https://10.0.0.1:6443/a@b", 0},
		{"digests", "sha256:" + strings.Repeat("3a", 32) + " MIGH" + strings.Repeat("a", 80), "sha256:" + strings.Repeat("3a", 32) + " MIGH" + strings.Repeat("a", 80), 0},
	} {
		if got, count := redact(c.text); got != c.want || count != c.count {
			t.Errorf("%s: got %d, %q; want %d, %q", c.name, count, got, c.count, c.want)
		}
	}
	// The time that redact takes is linear in the size of the text. If it were quadratic, this test
	// would not end in time.
	if got, count := redact(strings.Repeat(strings.TrimSpace(begin), 200_000)); got != "(redacted)" || count != 1 {
		t.Errorf("a text with many BEGIN lines: got %d, %.40q", count, got)
	}
}

// TestRedactValue checks that redactValue replaces secrets in all texts of a JSON value, also a key
// that is split into the elements of a list.
func TestRedactValue(t *testing.T) {
	value := map[string]any{
		"log": []any{"one", "-----BEGIN PRIVATE KEY-----", "abc", "-----END PRIVATE KEY-----", "two"},
		"all": []any{map[string]any{"text": "-----BEGIN PRIVATE KEY-----\nabc"}, 7, "https://a:b@c", nil}, "none": []any{"x", "y"}, "empty": []any{},
	}
	want := map[string]any{
		"log": []any{"one", "(redacted)", "two"},
		"all": []any{map[string]any{"text": "(redacted)"}, 7, "https://(redacted)@c", nil}, "none": []any{"x", "y"}, "empty": []any{},
	}
	if got, count := redactValue(value); count != 3 || !reflect.DeepEqual(got, any(want)) {
		t.Errorf("got %d, %v", count, got)
	}
}

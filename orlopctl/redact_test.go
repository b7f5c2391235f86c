package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	body := "MHcCAQEEIP\nabcdefghij\n"
	begin, end := "-----BEGIN EC PRIVATE KEY-----\n", "-----END EC PRIVATE KEY-----\n"
	many := strings.Repeat("line\n", maxKeyLines)
	token := "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0AAAA.c2lnbmF0dXJlLW9m_-MTIz"
	for _, c := range []struct {
		name, text, want string
		count            int
	}{
		{"nothing", "", "", 0},
		{"a log", "one\ntwo -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "one\ntwo -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", 0},
		{"a key", "one\n" + begin + body + end + "two\n", "one\n(redacted)\ntwo\n", 1},
		{"two keys", begin + body + end + "and\n" + begin + body + end, "(redacted)\nand\n(redacted)\n", 2},
		{"with stamps", "12:00  " + begin + "12:00  MHcC\n12:01  other\n12:00  " + end + "two\n", "12:00  (redacted)\ntwo\n", 1},
		{"OpenPGP's", "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----", "(redacted)", 1},
		{"one inside of another", begin + begin + body + end + end + "two", "(redacted)(redacted)\ntwo", 2},
		{"the end is lost", "one\n" + begin + body, "one\n(redacted)", 1},
		{"the end is lost, and much follows", "one\n" + begin + many + "two\n", "one\n(redacted)\ntwo\n", 1},
		{"the beginning is lost", body + end + "two\n", "(redacted)\ntwo\n", 1},
		{"the beginning is lost, and much was before", "one\n" + many + end + "two\n", "one\n(redacted)\ntwo\n", 1},
		{"a web token", "Bearer " + token + ", and", "Bearer (redacted), and", 1},
		{"a password", "proxy http://dora:s3cret@10.0.0.1:80/x", "proxy http://(redacted)@10.0.0.1:80/x", 1},
		{"no password", "https://[fd00::1]:6443/a@b https://10.0.0.1:6443/a@b", "https://[fd00::1]:6443/a@b https://10.0.0.1:6443/a@b", 0},
		{"digests", "sha256:" + strings.Repeat("3a", 32) + " MIGH" + strings.Repeat("a", 80), "sha256:" + strings.Repeat("3a", 32) + " MIGH" + strings.Repeat("a", 80), 0},
	} {
		if got, count := redact(c.text); got != c.want || count != c.count {
			t.Errorf("%s: got %d, %q; want %d, %q", c.name, count, got, c.count, c.want)
		}
	}
	// redact takes linear time for any text. With quadratic time, this test would not end.
	if got, count := redact(strings.Repeat(strings.TrimSpace(begin), 200_000)); got != "(redacted)" || count != 1 {
		t.Errorf("many beginnings: got %d, %.40q", count, got)
	}
}

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

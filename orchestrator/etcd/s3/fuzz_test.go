package s3

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// FuzzRefusal parses arbitrary answers of a store. The error must be a single line of bounded
// length, without control sequences.
func FuzzRefusal(f *testing.F) {
	f.Add("403 Forbidden", "<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
	f.Add("500 \x1b[2J", "<a><a><a>")
	f.Fuzz(func(t *testing.T, status, body string) {
		err := refusal(&http.Response{Status: status, StatusCode: 403, Body: io.NopCloser(strings.NewReader(body))})
		if err == nil || len(err.Error()) > 700 || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q", err)
		}
	})
}

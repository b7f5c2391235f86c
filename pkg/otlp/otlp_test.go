package otlp

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPost sends records to a receiver that decodes the request with the types of the protocol.
func TestPost(t *testing.T) {
	got := &collector.ExportLogsServiceRequest{}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		plain, err := gzip.NewReader(r.Body)
		check(t, err)
		text, err := io.ReadAll(plain)
		check(t, err)
		check(t, proto.Unmarshal(text, got))
		if r.Method != http.MethodPost || r.URL.Path != "/v1/logs" || r.Header.Get("Content-Type") != "application/x-protobuf" || r.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		answer, err := proto.Marshal(&collector.ExportLogsServiceResponse{PartialSuccess: &collector.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "too\x1bold"}})
		check(t, err)
		_, err = w.Write(answer)
		check(t, err)
	}))
	defer receiver.Close()
	at := time.Date(2026, 5, 4, 3, 2, 1, 7, time.UTC)
	b := Batch{Scope: "test"}
	for i, app := range []string{"apid", "kernel", "apid"} {
		r := NewRecord(at, at.Add(time.Second), fmt.Sprintf("line %d\xff", i), Int("orlop.number", int64(i)), String("bad", "\xfe"))
		SetSeverity(r, i)
		b.Add(app, func() []*common.KeyValue { return Resource("m1", app) }, r)
	}
	body, err := Encode(b.Data())
	check(t, err)
	answer, err := Post(t.Context(), receiver.Client(), receiver.URL+Path, body, b.Records)
	if err != nil || answer != (Answer{Rejected: 1, Problem: "too?old"}) {
		t.Errorf("%+v, %v", answer, err)
	}
	var lines []string
	for _, r := range got.GetResourceLogs() {
		for _, l := range r.GetScopeLogs()[0].GetLogRecords() {
			lines = append(lines, fmt.Sprint(r.GetResource().GetAttributes()[1].GetValue().GetStringValue(), " ", l.GetBody().GetStringValue(), " ", l.GetSeverityNumber(), " ", l.GetSeverityText(), " ", l.GetTimeUnixNano(), " ", l.GetObservedTimeUnixNano()-l.GetTimeUnixNano()))
		}
	}
	want := fmt.Sprintf("apid line 0\ufffd SEVERITY_NUMBER_FATAL emergency %[1]d 1000000000\napid line 2\ufffd SEVERITY_NUMBER_ERROR2 critical %[1]d 1000000000\nkernel line 1\ufffd SEVERITY_NUMBER_ERROR3 alert %[1]d 1000000000", at.UnixNano())
	if text := strings.Join(lines, "\n"); text != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}

// TestSameEncoding checks that LogsData and ExportLogsServiceRequest have the same encoding.
func TestSameEncoding(t *testing.T) {
	one := []*logs.ResourceLogs{{SchemaUrl: "x"}}
	a, err := proto.Marshal(&logs.LogsData{ResourceLogs: one})
	check(t, err)
	b, err := proto.Marshal(&collector.ExportLogsServiceRequest{ResourceLogs: one})
	check(t, err)
	if string(a) != string(b) {
		t.Errorf("%x and %x differ", a, b)
	}
}

// TestAnswers checks the result of interpret for each kind of response.
func TestAnswers(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	encoded := func(m proto.Message) string {
		text, err := proto.Marshal(m)
		check(t, err)
		return string(text)
	}
	full := encoded(&collector.ExportLogsServiceResponse{})
	partly := encoded(&collector.ExportLogsServiceResponse{PartialSuccess: &collector.ExportLogsPartialSuccess{RejectedLogRecords: 99, ErrorMessage: "quota"}})
	warning := encoded(&collector.ExportLogsServiceResponse{PartialSuccess: &collector.ExportLogsPartialSuccess{ErrorMessage: "slow down"}})
	bad := encoded(&status.Status{Code: 3, Message: "no\nlogs"})
	for _, c := range []struct {
		name             string
		code             int
		kind, body, wait string
		want             string
	}{
		{"full success", 200, contentType, full, "", "rejected 0"},
		{"partial success, more records rejected than sent", 200, contentType, partly, "", "rejected 5: quota"},
		{"a warning", 200, contentType, warning, "", "rejected 0: slow down"},
		{"success without a body", 204, "", "", "", "rejected 0"},
		{"success in JSON", 200, "application/json; charset=utf-8", "{}", "", "rejected 0"},
		{"a page in HTML", 200, "text/html", "<html>", "", "error: the answer of the receiver is no answer of OTLP"},
		{"a body that is no message", 200, contentType, "\xff", "", "error: the answer of the receiver is no answer of OTLP"},
		{"bad data", 400, contentType, bad, "", "rejected 5: the receiver answers 400 Bad Request: no?logs"},
		{"too large", 413, "text/plain", "large\n", "", "rejected 5: the receiver answers 413 Request Entity Too Large: large"},
		{"Retry-After in seconds", 429, contentType, bad, "7", "wait 7s: the receiver answers 429 Too Many Requests: no?logs"},
		{"Retry-After with a date", 503, "", "", "Mon, 04 May 2026 03:02:31 GMT", "wait 30s: the receiver answers 503 Service Unavailable"},
		{"Retry-After with a date in the past", 502, "", "", "Mon, 04 May 2020 03:02:31 GMT", "wait 0s: the receiver answers 502 Bad Gateway"},
		{"Retry-After above the maximum", 504, "", "", "99999999", "wait 5m0s: the receiver answers 504 Gateway Timeout"},
		{"an invalid Retry-After", 503, "", "", "-1", "wait 0s: the receiver answers 503 Service Unavailable"},
		{"unauthorized", 401, "", "", "", "wait 0s: the receiver answers 401 Unauthorized"},
		{"a redirect", 302, "", "", "", "wait 0s: the receiver answers 302 Found"},
		{"a server error", 500, "", "", "", "wait 0s: the receiver answers 500 Internal Server Error"},
	} {
		a, err := interpret(c.code, http.Header{"Content-Type": {c.kind}, "Retry-After": {c.wait}}, []byte(c.body), 5, now)
		got := strings.TrimSuffix(fmt.Sprintf("rejected %d: %s", a.Rejected, a.Problem), ": ")
		if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
			got = fmt.Sprintf("wait %v: %v", refusal.Wait, err)
		} else if err != nil {
			got = "error: " + err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}

// TestUnknownFields checks that the function partial ignores fields that a later version of the
// protocol adds.
func TestUnknownFields(t *testing.T) {
	// field 1: {field 3: 32 bits, field 1: 2}, field 9: 64 bits
	a, err := partial([]byte("\x0a\x07\x1d\x01\x02\x03\x04\x08\x02\x49\x01\x02\x03\x04\x05\x06\x07\x08"), 5)
	if err != nil || a.Rejected != 2 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestTimes checks that a time that the protocol cannot express becomes 0.
func TestTimes(t *testing.T) {
	for _, at := range []time.Time{{}, time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if n := nanoseconds(at); n != 0 {
			t.Errorf("%v: %d", at, n)
		}
	}
}

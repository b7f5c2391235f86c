package sender

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/otlp/otlptest"
)

// TestForms checks the forms of a record as JSON and as syslog. They follow RFC 5424 (section 6),
// RFC 5425 (section 4.3) and docs/decisions/0024-shipping.md.
func TestForms(t *testing.T) {
	at := time.Date(2026, 5, 4, 5, 2, 1, 3_000_999, time.FixedZone("", 2*60*60))
	const boot = "0a3f5c52-7b1e-4a57-9d1c-5f1f8f8f8f8f"
	call := `{"number":4711,"before":"ab","subject":"CN=a,O=orlop:admin","reason":"\"<é>\""}`
	for _, c := range []struct {
		line         Record
		json, syslog string
	}{
		{
			Record{Source: "audit", Number: 4711, Time: at, Facility: 13, Severity: 6, App: "audit", Kind: "call", Text: call},
			`{"machine":"m1","source":"audit","number":4711,"time":"2026-05-04T03:02:01.003000999Z","severity":"info","kind":"call","text":"{\"number\":4711,\"before\":\"ab\",\"subject\":\"CN=a,O=orlop:admin\",\"reason\":\"\\\"<é>\\\"\"}"}` + "\n",
			`156 <110>1 2026-05-04T03:02:01.003000Z m1 audit - call [meta sequenceId="4711"] ` + call,
		},
		{
			Record{Source: "services/apid", Boot: boot, Number: 1, Time: at, Facility: 3, Severity: 6, App: "apid", Kind: "log", Text: "up\x1b[0m"},
			`{"machine":"m1","boot":"` + boot + `","source":"services/apid","number":1,"time":"2026-05-04T03:02:01.003000999Z","severity":"info","kind":"log","text":"up\u001b[0m"}` + "\n",
			`111 <30>1 2026-05-04T03:02:01.003000Z m1 apid ` + boot + ` log [meta sequenceId="1"] ` + "up\x1b[0m",
		},
		{ // a kernel record of several lines, with a number above the maximum of sequenceId
			Record{Source: "kernel", Boot: "b", Number: 1<<31 + 1, Time: at, Facility: 0, Severity: 0, App: "kernel", Kind: "log", Text: "a\nb"},
			`{"machine":"m1","boot":"b","source":"kernel","number":2147483649,"time":"2026-05-04T03:02:01.003000999Z","severity":"emergency","kind":"log","text":"a\nb"}` + "\n",
			`74 <0>1 2026-05-04T03:02:01.003000Z m1 kernel b log [meta sequenceId="2"] a` + "\nb",
		},
		{ // fields with characters or a length that the header of syslog does not permit
			Record{Source: "events", Boot: "b", Number: 9, Missed: 3, Time: at, Facility: 3, Severity: 4, App: "ma chined\n", Kind: "a-kind-that-is-longer-than-32-octets", Text: ""},
			`{"machine":"m1","boot":"b","source":"events","number":9,"time":"2026-05-04T03:02:01.003000999Z","severity":"warning","kind":"a-kind-that-is-longer-than-32-octets","missed":3,"text":""}` + "\n",
			`105 <28>1 2026-05-04T03:02:01.003000Z m1 ma_chined_ b a-kind-that-is-longer-than-32-oc [meta sequenceId="9"] `,
		},
	} {
		if got := string(JSON("m1", c.line)); got != c.json {
			t.Errorf("got  %swant %s", got, c.json)
		}
		if got := string(Syslog("m1", c.line)); got != c.syslog {
			t.Errorf("got  %q\nwant %q", got, c.syslog)
		}
	}
	// The text of a record is unchanged after decoding, byte for byte, because digests cover the
	// text.
	var got struct{ Text string }
	if err := json.Unmarshal(JSON("m1", Record{Text: call}), &got); err != nil || got.Text != call {
		t.Errorf("%v: %s", err, got.Text)
	}
}

// TestOTLP checks that records of OTLP have the same fields as the JSON form, and the unchanged
// text. Only records of the audit log have the attribute before.
func TestOTLP(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	got := OTLP("m1", []Record{
		{Source: "audit", Number: 7, Time: at, Facility: 13, Severity: 5, App: "audit", Kind: "call", Text: `{"number":7,"before":"ab","at":"<é>"}`},
		{Source: "services/apid", Boot: "b", Number: 1, Time: at, Severity: 6, App: "apid", Kind: "log", Text: `{"before":"forged"}`},
		{Source: "audit", Number: 9, Missed: 2, Severity: 4, App: "audit", Kind: "missed", Text: "gone"},
	}, at.Add(time.Second))
	text, err := proto.Marshal(got)
	check(t, err)
	request := &collector.ExportLogsServiceRequest{}
	check(t, proto.Unmarshal(text, request))
	want := []otlptest.Line{
		{Machine: "m1", Source: "audit", Number: 7, Before: "ab", Severity: "notice", Kind: "call", Text: `{"number":7,"before":"ab","at":"<é>"}`},
		{Machine: "m1", Source: "audit", Number: 9, Missed: 2, Severity: "warning", Kind: "missed", Text: "gone"},
		{Machine: "m1", Source: "services/apid", Boot: "b", Number: 1, Severity: "info", Kind: "log", Text: `{"before":"forged"}`},
	}
	if lines := otlptest.Lines(request); !reflect.DeepEqual(lines, want) {
		t.Errorf("got  %+v\nwant %+v", lines, want)
	}
	r := request.GetResourceLogs()[0]
	record := r.GetScopeLogs()[0].GetLogRecords()[0]
	if name := r.GetResource().GetAttributes()[1]; name.GetKey() != "service.name" || name.GetValue().GetStringValue() != "audit" ||
		record.GetTimeUnixNano() != uint64(at.UnixNano()) || record.GetObservedTimeUnixNano() != uint64(at.Add(time.Second).UnixNano()) {
		t.Errorf("%v", r)
	}
}

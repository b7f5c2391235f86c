package otlp

import (
	"cmp"
	"strings"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
)

// Path is the path of logs below the address of a receiver.
const Path = "/v1/logs"

// severities are the severities of syslog's 0 (emergency) to 7 (debug), by appendix B of the data
// model of logs, and syslog's names, which are the severity texts.
var severities = [8]struct {
	number logs.SeverityNumber
	text   string
}{
	{logs.SeverityNumber_SEVERITY_NUMBER_FATAL, "emergency"},
	{logs.SeverityNumber_SEVERITY_NUMBER_ERROR3, "alert"},
	{logs.SeverityNumber_SEVERITY_NUMBER_ERROR2, "critical"},
	{logs.SeverityNumber_SEVERITY_NUMBER_ERROR, "error"},
	{logs.SeverityNumber_SEVERITY_NUMBER_WARN, "warning"},
	{logs.SeverityNumber_SEVERITY_NUMBER_INFO2, "notice"},
	{logs.SeverityNumber_SEVERITY_NUMBER_INFO, "info"},
	{logs.SeverityNumber_SEVERITY_NUMBER_DEBUG, "debug"},
}

// NewRecord returns a record. A zero time means unknown. Bytes of the body that are not UTF-8
// become U+FFFD, because a string of protobuf is UTF-8.
func NewRecord(at, observed time.Time, body string, attributes ...*common.KeyValue) *logs.LogRecord {
	return &logs.LogRecord{
		TimeUnixNano: nanoseconds(at), ObservedTimeUnixNano: nanoseconds(observed), Attributes: attributes,
		Body: text(body),
	}
}

// SetSeverity sets the severity of a record from a severity of syslog, 0 (emergency) to 7 (debug).
func SetSeverity(r *logs.LogRecord, syslog int) {
	s := severities[syslog&7]
	r.SeverityNumber, r.SeverityText = s.number, s.text
}

// nanoseconds returns a time in nanoseconds since 1970; 0 for a time that the protocol cannot
// express.
func nanoseconds(at time.Time) uint64 {
	if at.Year() < 1970 || at.Year() > 2261 {
		return 0
	}
	return uint64(at.UnixNano())
}

// String returns an attribute with a text, in which bytes that are not UTF-8 become U+FFFD.
func String(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: text(value)}
}

// Int returns an attribute with a number.
func Int(key string, value int64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: value}}}
}

func text(value string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: strings.ToValidUTF8(value, "\ufffd")}}
}

// Batch is a number of records by resource. The zero value is empty.
type Batch struct {
	Scope   string // name of the program that made the records
	Records int

	all   []*logs.ResourceLogs
	byKey map[string]*logs.ScopeLogs
}

// Add adds a record. The key selects its resource; attributes returns the attributes of a resource
// that the batch does not have yet.
func (b *Batch) Add(key string, attributes func() []*common.KeyValue, r *logs.LogRecord) {
	scope := b.byKey[key]
	if scope == nil {
		scope = &logs.ScopeLogs{Scope: &common.InstrumentationScope{Name: b.Scope}}
		if b.byKey == nil {
			b.byKey = map[string]*logs.ScopeLogs{}
		}
		b.byKey[key] = scope
		b.all = append(b.all, &logs.ResourceLogs{Resource: &resource.Resource{Attributes: attributes()}, ScopeLogs: []*logs.ScopeLogs{scope}})
	}
	scope.LogRecords = append(scope.LogRecords, r)
	b.Records++
}

// Data returns the records as the body of a request, without compression.
func (b *Batch) Data() *logs.LogsData { return &logs.LogsData{ResourceLogs: b.all} }

// Resource returns the attributes of a program on a machine: host.name and service.name of the
// semantic conventions. An empty service is unknown.
func Resource(machine, service string) []*common.KeyValue {
	return []*common.KeyValue{String("host.name", machine), String("service.name", cmp.Or(service, "unknown_service"))}
}

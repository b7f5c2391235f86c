package otlp

import (
	"cmp"
	"strings"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
)

// Path is the URL path for logs below the address of a receiver.
const Path = "/v1/logs"

// severities has the severity number and text for each severity of syslog, 0 (emergency) to 7
// (debug). The numbers are from appendix B of the data model of OpenTelemetry for logs. The texts
// are the names in syslog.
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

// NewRecord returns a record of a time, with a text and attributes. observed is the time at which
// the machine has read the text. A zero time means unknown. Invalid UTF-8 in the text becomes
// U+FFFD, because protobuf rejects it.
func NewRecord(at, observed time.Time, body string, attributes ...*common.KeyValue) *logs.LogRecord {
	return &logs.LogRecord{
		TimeUnixNano: nanoseconds(at), ObservedTimeUnixNano: nanoseconds(observed), Attributes: attributes,
		Body: text(body),
	}
}

// SetSeverity sets the severity of a record. syslog is a severity of syslog, 0 (emergency) to 7
// (debug).
func SetSeverity(r *logs.LogRecord, syslog int) {
	s := severities[syslog&7]
	r.SeverityNumber, r.SeverityText = s.number, s.text
}

// nanoseconds returns the nanoseconds since 1970, or 0 if the protocol cannot express the time.
func nanoseconds(at time.Time) uint64 {
	if at.Year() < 1970 || at.Year() > 2261 {
		return 0
	}
	return uint64(at.UnixNano())
}

// String returns an attribute with a text. Invalid UTF-8 in the text becomes U+FFFD.
func String(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: text(value)}
}

// Int returns an attribute with an integer.
func Int(key string, value int64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: value}}}
}

func text(value string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: strings.ToValidUTF8(value, "\ufffd")}}
}

// Batch groups records by their resource. The zero value is an empty batch.
type Batch struct {
	Scope   string // name of the program that sends the records
	Records int    // number of records

	all   []*logs.ResourceLogs
	byKey map[string]*logs.ScopeLogs
}

// Add adds a record. The key identifies its resource in the batch. Add calls attributes for the
// attributes of the resource if the key is new.
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

// Data returns all records, the argument of Encode.
func (b *Batch) Data() *logs.LogsData { return &logs.LogsData{ResourceLogs: b.all} }

// Resource returns the attributes of a program on a machine: host.name and service.name of the
// semantic conventions. An empty service becomes unknown_service.
func Resource(machine, service string) []*common.KeyValue {
	return []*common.KeyValue{String("host.name", machine), String("service.name", cmp.Or(service, "unknown_service"))}
}

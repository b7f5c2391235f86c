// Package otlp exports log records over OTLP/HTTP with binary protobuf and gzip, as version 1.11 of
// the protocol specifies (https://opentelemetry.io/docs/specs/otlp/#otlphttp).
//
// The package makes one attempt for each call: its caller has the records, and decides when it
// repeats the attempt. The package opens no connection; its caller has the client.
//
// The request has the type LogsData, which has the same encoding as ExportLogsServiceRequest. The
// package of the latter would link a gateway from HTTP to gRPC.
package otlp

// Package otlp exports log records over OTLP/HTTP, with binary protobuf and gzip. It implements
// version 1.11 of the protocol (https://opentelemetry.io/docs/specs/otlp/#otlphttp).
//
// Each call makes a single attempt. The caller stores the records, and decides when it repeats an
// attempt. The caller also passes the HTTP client: the package opens no connection.
//
// A request of the protocol is an ExportLogsServiceRequest. The package uses LogsData, which has
// the same encoding, because the Go package of ExportLogsServiceRequest also links a gateway from
// HTTP to gRPC.
package otlp

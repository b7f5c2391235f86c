// Package otlptest decodes OTLP requests in tests. It uses the official Go types of the collector
// service. Package otlp does not use these types.
package otlptest

import (
	"compress/gzip"
	"io"
	"net/http"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Handler returns a handler for POST /v1/logs that decodes each request. The function answer
// returns the response and the status 200, or another HTTP status.
func Handler(answer func(*collector.ExportLogsServiceRequest) (*collector.ExportLogsServiceResponse, int)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/logs", func(w http.ResponseWriter, r *http.Request) {
		request, err := decode(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		response, code := answer(request)
		if code != http.StatusOK {
			w.Header().Set("Retry-After", "0")
			http.Error(w, "not now", code)
			return
		}
		body, err := proto.Marshal(response)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(body) // the sender repeats a request that gets no response
	})
	return mux
}

func decode(r *http.Request) (*collector.ExportLogsServiceRequest, error) {
	plain, err := gzip.NewReader(r.Body)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(plain)
	if err != nil {
		return nil, err
	}
	request := &collector.ExportLogsServiceRequest{}
	return request, proto.Unmarshal(text, request)
}

// Line is a log record with the fields that the machine's own log lines in JSON have.
type Line struct {
	Machine  string            `json:"machine"`
	Boot     string            `json:"boot,omitempty"`
	Source   string            `json:"source,omitempty"` // empty for a record of a pod
	Number   uint64            `json:"number,omitempty"`
	Before   string            `json:"before,omitempty"` // hash of the previous record (audit log)
	Severity string            `json:"severity,omitempty"`
	Kind     string            `json:"kind,omitempty"`
	Missed   uint64            `json:"missed,omitempty"`
	Text     string            `json:"text"`
	Pod      map[string]string `json:"pod,omitempty"` // resource attributes without host.name
}

// Lines returns the records in a request, in their order.
func Lines(request *collector.ExportLogsServiceRequest) (all []Line) {
	for _, resource := range request.GetResourceLogs() {
		attributes := texts(resource.GetResource().GetAttributes())
		machine := attributes["host.name"]
		delete(attributes, "host.name")
		for _, scope := range resource.GetScopeLogs() {
			for _, r := range scope.GetLogRecords() {
				has := texts(r.GetAttributes())
				line := Line{Machine: machine, Boot: has["orlop.boot"], Source: has["orlop.source"], Severity: r.GetSeverityText(), Kind: has["orlop.kind"], Before: has["orlop.before"], Text: r.GetBody().GetStringValue()}
				line.Number, line.Missed = number(r.GetAttributes(), "orlop.number"), number(r.GetAttributes(), "orlop.missed")
				if attributes["k8s.pod.name"] != "" {
					line.Pod = attributes
				}
				all = append(all, line)
			}
		}
	}
	return all
}

func texts(attributes []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range attributes {
		all[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return all
}

func number(attributes []*common.KeyValue, key string) uint64 {
	for _, a := range attributes {
		if a.GetKey() == key {
			return uint64(a.GetValue().GetIntValue())
		}
	}
	return 0
}

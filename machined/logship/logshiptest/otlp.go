package logshiptest

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"

	"github.com/orlop-os/orlop/pkg/otlp/otlptest"
)

// ServeHTTP lets the receiver serve HTTP over TLS, with the handler h, instead of lines.
func (r *Receiver) ServeHTTP(h http.Handler) {
	server := http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	r.Serve = func(raw net.Conn) { _ = server.Serve(&single{tls.Server(raw, r.TLS)}) }
}

// single is a listener with one connection.
type single struct{ net.Conn }

// Accept returns the connection at the first call, and an error after that.
func (s *single) Accept() (net.Conn, error) {
	if s.Conn == nil {
		return nil, net.ErrClosed
	}
	conn := s.Conn
	s.Conn = nil
	return conn, nil
}

// Close implements net.Listener; the server closes the connection itself.
func (s *single) Close() error { return nil }

// Addr implements net.Listener.
func (s *single) Addr() net.Addr { return &net.TCPAddr{} }

// ReceiveOTLP lets the receiver receive OTLP over HTTP. It calls Line with each record, as a JSON
// line.
func (r *Receiver) ReceiveOTLP() {
	r.ServeHTTP(otlptest.Handler(func(request *collector.ExportLogsServiceRequest) (*collector.ExportLogsServiceResponse, int) {
		for _, line := range otlptest.Lines(request) {
			text, err := json.Marshal(line)
			if err != nil {
				return nil, http.StatusInternalServerError
			}
			r.Line(string(text))
		}
		return &collector.ExportLogsServiceResponse{}, http.StatusOK
	}))
}

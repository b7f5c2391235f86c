package kubeapiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestDocumentsAhead checks that the documents are built once: after the delay if no client
// requests them, and otherwise at the first request.
func TestDocumentsAhead(t *testing.T) {
	for _, client := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		builds := 0
		d := &documents{build: func() http.Handler {
			builds++
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"paths":{"api/v1":{}}}`)) })
		}}
		front := d.front(d) // without an aggregator between
		request := func() string {
			w := httptest.NewRecorder()
			front.ServeHTTP(w, httptest.NewRequest(http.MethodGet, openAPIV3, nil))
			return w.Body.String()
		}
		after := time.Millisecond
		if client {
			after = 0
			if got := request(); got == noDocuments || builds != 1 {
				t.Errorf("the first client gets %q after %d builds", got, builds)
			}
		}
		done := make(chan struct{})
		go func() { d.buildAhead(ctx, after); close(done) }()
		select {
		case <-done:
		case <-ctx.Done():
			t.Fatal("buildAhead does not end")
		}
		if builds != 1 || !d.complete.Load() {
			t.Errorf("with an earlier client: %t: %d builds, complete: %t", client, builds, d.complete.Load())
		}
		if got := request(); got == noDocuments || builds != 1 {
			t.Errorf("a client after buildAhead gets %q, after %d builds", got, builds)
		}
	}
}

// TestDocumentsNotBuiltAtStop checks that a server that stops builds no documents.
func TestDocumentsNotBuiltAtStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := &documents{build: func() http.Handler { t.Error("the documents are built"); return nil }}
	d.buildAhead(ctx, time.Hour)
	if d.requested.Load() {
		t.Error("buildAhead requests the documents")
	}
}

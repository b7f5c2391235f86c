package vm

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
)

// TestQMPAnswerBeforeTheEnd checks that the end of QEMU or of the context does not hide an answer
// that arrived before.
func TestQMPAnswerBeforeTheEnd(t *testing.T) {
	q := &qmp{ended: make(chan struct{})}
	close(q.ended)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		answer := make(chan qmpMessage, 1)
		answer <- qmpMessage{Return: json.RawMessage("{}")}
		if result, err := q.await(ctx, "query-status", answer); err != nil || string(result) != "{}" {
			t.Fatalf("await returns %s, %v, want the answer", result, err)
		}
	}
	if _, err := q.await(t.Context(), "query-status", nil); !errors.Is(err, errMonitorEnded) {
		t.Errorf("await without an answer returns %v", err)
	}
}

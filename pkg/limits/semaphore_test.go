package limits

import (
	"context"
	"errors"
	"testing"
)

// TestSemaphore checks that a full semaphore admits no operation before a release. Acquire fails
// when its context ends. TryAcquire does not wait.
func TestSemaphore(t *testing.T) {
	places := make(chan struct{}, 1)
	release, ok := TryAcquire(places)
	if !ok {
		t.Fatal("TryAcquire fails although a place is free")
	}
	if _, ok := TryAcquire(places); ok {
		t.Error("TryAcquire succeeds although no place is free")
	}
	stopped, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("ended")
	cancel(ended)
	if _, err := Acquire(stopped, places, "reading"); !errors.Is(err, ended) {
		t.Errorf("Acquire with a canceled context: %v", err)
	}
	release()
	release, err := Acquire(t.Context(), places, "reading")
	if err != nil {
		t.Fatal(err)
	}
	release()
	if len(places) != 0 {
		t.Error("a place is still taken after its release")
	}
}

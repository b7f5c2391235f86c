package dhcptest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
)

// Log records the messages that a server for tests has received, as text.
type Log struct {
	server string // name of the server in failures
	news   cell.Signal

	mu   sync.Mutex
	seen []string
}

// NewLog returns an empty log of a server, for example "DHCP server".
func NewLog(server string) *Log { return &Log{server: server, news: cell.NewSignal()} }

// Add records a message.
func (l *Log) Add(message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, message)
	l.news.Wake()
}

// Seen returns the received messages.
func (l *Log) Seen() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

// Wait waits until ok returns true for the received messages, and returns them. If this takes
// longer than limit, it fails the test.
func (l *Log) Wait(t *testing.T, limit time.Duration, ok func(seen []string) bool) []string {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		if seen := l.Seen(); ok(seen) {
			return seen
		}
		select {
		case <-l.news:
		case <-deadline.C:
			t.Fatalf("the %s has not received the expected messages within %v; it has received %q", l.server, limit, l.Seen())
		}
	}
}

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// TestTables checks that a disk that does not respond delays the search once by tableTimeout, is
// not read a second time, and is used as soon as it responds. An error or a panic of the reader
// affects only its own disk.
func TestTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := uuid.New()
		reads := map[string]int{}
		answers := make(chan struct{})
		var lines []string
		tb := tables{
			timeout: tableTimeout, pending: map[string]<-chan reading{},
			say: func(_ level, format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) },
		}
		tb.read = func(disk string) ([]uuid.UUID, error) {
			reads[disk]++
			switch disk {
			case "stuck":
				<-answers
			case "broken":
				return nil, errors.New("no table")
			case "odd":
				panic("out of range")
			}
			return []uuid.UUID{id}, nil
		}
		want := func(disk string, there bool, took time.Duration) {
			t.Helper()
			began := time.Now()
			if got := tb.guids(disk); slices.Contains(got, id) != there || time.Since(began) != took {
				t.Errorf("%s: the GUIDs %v after %v, want the GUID of the partition: %t, after %v", disk, got, time.Since(began), there, took)
			}
		}
		want("stuck", false, tableTimeout)
		want("good", true, 0)
		want("stuck", false, 0)
		want("broken", false, 0)
		want("odd", false, 0)
		want("stuck", false, 0)
		if reads["stuck"] != 1 || len(lines) != 3 {
			t.Errorf("%d reads of the disk that does not respond, want 1; %d console lines, want 3:\n%s", reads["stuck"], len(lines), strings.Join(lines, "\n"))
		}
		close(answers)
		synctest.Wait()
		want("stuck", true, 0)
		want("stuck", true, 0)
		if reads["stuck"] != 2 {
			t.Errorf("%d reads of the disk that responds again, want 2", reads["stuck"])
		}
	})
}

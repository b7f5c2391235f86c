package configstore

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/safefile"
)

const (
	// maxEntries is the number of configurations in the history; the oldest are removed first.
	maxEntries = 32
	// maxHistory limits the size of the history on STATE, in bytes; the latest entry stays even if
	// it is larger.
	maxHistory = 16 << 20
	// maxChanges limits the changes of an entry. With this limit, a list of all entries fits into
	// one API message.
	maxChanges = 200
)

// Entry is a configuration that was activated.
type Entry struct {
	Number uint64    `json:"number"` // starts at 1, never reused on the same STATE
	At     time.Time `json:"at"`
	// the client or cause of the activation: "CN=admin,O=orlop:admin from 10.0.0.2:4711", "start"
	By string `json:"by"`
	// differences from the previous entry, at most maxChanges; secrets appear by name, without
	// value
	Changes   []string `json:"changes"`
	Documents string   `json:"documents"`
}

func (s Store) history() string { return filepath.Join(s.Dir, "history") }

func (s Store) entry(number uint64) string {
	return filepath.Join(s.history(), strconv.FormatUint(number, 10)+".json")
}

// Revisions returns the numbers of the entries in ascending order.
func (s Store) Revisions() ([]uint64, error) {
	list, err := os.ReadDir(s.history())
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("configuration: cannot read the history: %w", err)
	}
	var numbers []uint64
	for _, e := range list {
		digits, isEntry := strings.CutSuffix(e.Name(), ".json")
		if n, err := strconv.ParseUint(digits, 10, 64); isEntry && err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// Entry returns the entry with a number.
func (s Store) Entry(number uint64) (Entry, error) {
	text, err := os.ReadFile(s.entry(number))
	if os.IsNotExist(err) {
		return Entry{}, fmt.Errorf("configuration %d: cannot find: it is not in the history; `orlopctl config-history` lists the entries", number)
	}
	var e Entry
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("configuration %d: cannot read: %w", number, err)
	}
	return e, nil
}

// Last returns the latest entry; the zero Entry if the history is empty. For an unreadable entry it
// returns only the number, so that the number is not reused.
func (s Store) Last() (Entry, error) {
	numbers, err := s.Revisions()
	if err != nil || len(numbers) == 0 {
		return Entry{}, err
	}
	last := numbers[len(numbers)-1]
	e, err := s.Entry(last)
	if err != nil {
		return Entry{Number: last}, nil
	}
	return e, nil
}

// Add records documents as the active configuration, unless the latest entry has the same
// documents. changes returns the differences from the documents of the latest entry.
func (s Store) Add(documents []byte, by string, at time.Time, changes func(before string) []string) error {
	last, err := s.Last()
	if err != nil || last.Documents == string(documents) {
		return err
	}
	e := Entry{Number: last.Number + 1, At: at, By: by, Changes: changes(last.Documents), Documents: string(documents)}
	if more := len(e.Changes) - maxChanges; more > 0 {
		e.Changes = append(e.Changes[:maxChanges:maxChanges], fmt.Sprintf("and %d more", more))
	}
	text, err := json.Marshal(e)
	if err == nil {
		err = os.MkdirAll(s.history(), 0o700)
	}
	if err == nil {
		err = safefile.WriteFile(s.entry(e.Number), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("configuration: cannot store it in the history: %w", err)
	}
	return s.prune()
}

// prune removes the oldest entries until the history is within its limits.
func (s Store) prune() error {
	numbers, err := s.Revisions()
	if err != nil {
		return err
	}
	var total int64
	for i, n := range slices.Backward(numbers) {
		info, err := os.Stat(s.entry(n))
		if err != nil {
			return fmt.Errorf("configuration: cannot read the history: %w", err)
		}
		total += info.Size()
		kept := len(numbers) - i
		if kept == 1 || kept <= maxEntries && total <= maxHistory {
			continue
		}
		if err := os.Remove(s.entry(n)); err != nil {
			return fmt.Errorf("configuration: cannot remove number %d from the history: %w", n, err)
		}
	}
	return nil
}

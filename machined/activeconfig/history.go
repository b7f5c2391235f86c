package activeconfig

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/configstore"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// AddToHistory adds the active configuration to the history. An error of the history does not stop
// the activation.
func (m *Manager) AddToHistory(text []byte, by string) {
	m.store(text, by, func(before string) []string { return compared([]byte(before), text) })
}

// addToHistory adds documents to the history with a remark instead of their differences.
func (m *Manager) addToHistory(text []byte, by, remark string) {
	m.store(text, by, func(string) []string { return []string{remark} })
}

func (m *Manager) store(text []byte, by string, changes func(before string) []string) {
	if why := m.deps.StorageProblem(); why != "" {
		return
	}
	if err := m.deps.Store.Add(text, by, time.Now(), changes); err != nil {
		m.deps.Event("failure", err.Error())
	}
}

// compared returns the differences between documents. Unreadable documents are treated as empty.
func compared(before, after []byte) []string {
	read := func(text []byte) *config.Config {
		c, problems := config.Parse("", text)
		if len(problems) > 0 {
			return nil
		}
		return c
	}
	return config.Changes(read(before), read(after))
}

// History returns the entries of the history.
func (m *Manager) History() ([]*api.ConfigEntry, error) {
	numbers, err := m.deps.Store.Revisions()
	if err != nil {
		return nil, err
	}
	var out []*api.ConfigEntry
	for _, n := range numbers {
		e, err := m.deps.Store.Entry(n)
		if err != nil {
			e = configstore.Entry{Number: n, By: "unknown", Changes: []string{err.Error()}}
		}
		out = append(out, &api.ConfigEntry{Number: e.Number, At: timestamppb.New(e.At), By: e.By, Changes: e.Changes})
	}
	return out, nil
}

// Revision returns a configuration of the history, or for 0 the active configuration, with the time
// and the author of its activation.
func (m *Manager) Revision(number uint64) (c *config.Config, at time.Time, by string, err error) {
	if number == 0 {
		now := m.Current()
		if now.Config == nil {
			return nil, time.Time{}, "", status.Error(codes.NotFound, "configuration: there is none yet; apply one")
		}
		return now.Config, now.At, now.Source, nil
	}
	e, err := m.deps.Store.Entry(number)
	if err != nil {
		return nil, time.Time{}, "", status.Error(codes.NotFound, err.Error())
	}
	c, problems := config.Parse(fmt.Sprintf("configuration %d", number), []byte(e.Documents))
	if len(problems) > 0 { // written by another version of the system
		return nil, time.Time{}, "", status.Errorf(codes.FailedPrecondition, "configuration %d: this version cannot read it: %v", number, problems)
	}
	return c, e.At, e.By, nil
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The origins of the documents of a configuration: a request, a patch, the history, STATE, the
// image.

// requested returns the documents of a request, and their name in messages.
func requested(now applied, filename string, r *api.ApplyRequest) (name string, text []byte, err error) {
	switch {
	case r.Number != 0 && (r.Patch || len(r.Documents) > 0):
		return "", nil, errors.New("cannot apply documents or a patch together with the number of an earlier configuration")
	case r.Number != 0:
		e, err := configs.Entry(r.Number)
		return fmt.Sprintf("configuration %d", r.Number), []byte(e.Documents), err
	case r.Patch:
		text, err := patched(now, r.Documents)
		return "patched", text, err // line numbers refer to the result
	}
	return filename, r.Documents, nil
}

// patched returns the present documents with a patch applied.
func patched(now applied, patch []byte) ([]byte, error) {
	if now.config == nil {
		return nil, errors.New("patch: no configuration to change; apply one")
	}
	present, err := os.ReadFile(configs.Current())
	if errors.Is(err, fs.ErrNotExist) { // the active configuration is part of the image
		present, err = config.Marshal(now.config), nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the present configuration: %w", err)
	}
	return config.Merge(present, patch)
}

// load reads the configuration on STATE, else the configuration in the image, else none. An
// unreadable stored configuration is an error and not the same as none: a machine without a
// configuration can be unclaimed, and would accept a pairing with any operator CA.
func load() (applied, string, error) {
	for _, place := range []struct{ file, source string }{{configs.Current(), "STATE"}, {paths.EmbeddedConfig, "image"}} {
		from := place.file
		text, err := os.ReadFile(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return applied{}, from, fmt.Errorf("configuration: cannot read: %w", err)
		}
		c, problems := config.Parse(from, text)
		if len(problems) > 0 {
			return applied{}, from, problems
		}
		info, err := os.Stat(from)
		if err != nil {
			return applied{}, from, fmt.Errorf("configuration: %w", err)
		}
		return applied{config: c, applied: info.ModTime(), source: place.source, documents: text}, from, nil
	}
	return applied{}, "", nil
}

// fallback returns the configuration to which a trial would revert: the active configuration or,
// during a trial, the previous configuration; nil if there is none.
func (m *machine) fallback(now applied) *config.Config {
	if why, _ := m.disks.Problem().Get(); why != "" || m.bootMedium != "" {
		return nil // without storage there is no trial
	}
	if now.trial.IsZero() {
		return now.config
	}
	text, err := configs.Confirmed()
	if err != nil {
		return now.config
	}
	c, problems := config.Parse("", text)
	if len(problems) > 0 {
		return now.config
	}
	return c
}

// Package level holds the level of the cluster in a file, so that the components of processes "api"
// and "controllers" start with the version that they emulate (docs/decisions/0096-two-phases.md).
// etcd holds the level of the cluster; process "api" copies it to the file. Package emulation
// decides, package etcd reads and raises the level.
package level

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/component-base/version"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// ControllersName is the name of the component that ends process "controllers" after a change of
// the level.
const ControllersName = "controllers-level"

// pollInterval is the time between two reads of the file.
const pollInterval = time.Second

// Own returns the minor version of Kubernetes of this executable.
func Own() emulation.Minor { return emulation.Of(version.DefaultKubeBinaryVersion) }

// file holds the level as a text, for example "1.36". Its directory is readable for all users.
func file(dirs dirs.Dirs) string { return filepath.Join(dirs.Level, "level") }

// Read returns the level in the file. The error is fs.ErrNotExist before the first start of process
// "api".
func Read(dirs dirs.Dirs) (emulation.Minor, error) {
	text, err := os.ReadFile(file(dirs))
	if err != nil {
		return emulation.Minor{}, fmt.Errorf("level: cannot read: %w", err)
	}
	m, err := emulation.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return emulation.Minor{}, fmt.Errorf("%s: %w", file(dirs), err)
	}
	return m, nil
}

// Write replaces the level in the file.
func Write(dirs dirs.Dirs, level emulation.Minor) error {
	// The mask of the process would make the file unreadable for other users.
	if err := renameio.WriteFile(file(dirs), []byte(level.String()+"\n"), 0o644, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("level: cannot write: %w", err)
	}
	return nil
}

// Await returns the level as soon as process "api" has written the file, or the error of ctx.
func Await(ctx context.Context, dirs dirs.Dirs) (emulation.Minor, error) {
	ticker := time.NewTicker(pollInterval / 20)
	defer ticker.Stop()
	for {
		m, err := Read(dirs)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return m, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return emulation.Minor{}, context.Cause(ctx)
		}
	}
}

// Apply sets the level of a node, and the version that its components emulate.
func Apply(spec *nodespec.Spec, level emulation.Minor) (err error) {
	spec.Level = level
	spec.Emulated, err = emulation.Emulated(level, Own())
	if err != nil {
		return fmt.Errorf("level: cannot start: %w", err)
	}
	return nil
}

// Watch returns an error when the level in the file is not the level of the node any more, so that
// the process ends and starts with the new level; nil if ctx ends first.
func Watch(ctx context.Context, env component.Env) error {
	env.Announce(ControllersName, true, "")
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		now, err := Read(env.Dirs)
		if err == nil && now != env.Spec.Level {
			return Changed(env.Spec.Level, now)
		}
	}
}

// Changed is the error with which a process ends that starts again at another level.
func Changed(before, now emulation.Minor) error {
	return fmt.Errorf("the level of the cluster is %s instead of %s: the process starts again", now, before)
}

// Package level stores the level of the cluster in a file of the machine. The components of
// processes "api" and "controllers" read the file when they start, and emulate the Kubernetes
// version of this level (docs/decisions/0096-two-phases.md).
//
// The source of the level is a key in etcd, which process "api" copies to the file. Package etcd
// reads and raises the level in etcd. Package emulation computes which version a level requires.
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

// ControllersName is the name of the component that makes process "controllers" end after a change
// of the level. The process then starts again with the new level.
const ControllersName = "controllers-level"

// pollInterval is the time between two reads of the file.
const pollInterval = time.Second

// Own returns the minor version of Kubernetes with which this executable was built.
func Own() emulation.Minor { return emulation.Of(version.DefaultKubeBinaryVersion) }

// file returns the path of the file. The file holds the level as text, for example "1.36". All
// users can read its directory.
func file(dirs dirs.Dirs) string { return filepath.Join(dirs.Level, "level") }

// Read returns the level in the file. Before process "api" has written the file for the first time,
// the error wraps fs.ErrNotExist.
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

// Write replaces the file by a file with this level, atomically.
func Write(dirs dirs.Dirs, level emulation.Minor) error {
	// With the umask of the process, other users could not read the file.
	if err := renameio.WriteFile(file(dirs), []byte(level.String()+"\n"), 0o644, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("level: cannot write: %w", err)
	}
	return nil
}

// Await waits until process "api" has written the file, and returns the level in it. It returns an
// error if ctx ends first (the cause of the end), or if the file exists and cannot be read.
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

// Apply sets the level in spec, and the version that the components emulate at this level. It fails
// if this executable cannot emulate the level, for example because the level is newer.
func Apply(spec *nodespec.Spec, level emulation.Minor) (err error) {
	spec.Level = level
	spec.Emulated, err = emulation.Emulated(level, Own())
	if err != nil {
		return fmt.Errorf("level: cannot start: %w", err)
	}
	return nil
}

// Watch polls the file and returns an error when the level in it differs from env.Spec.Level. The
// error makes the process end and start again with the new level. Watch returns nil if ctx ends
// first. It ignores errors of reading the file.
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

// Changed returns the error with which a process ends because the level of the cluster has changed.
func Changed(before, now emulation.Minor) error {
	return fmt.Errorf("the level of the cluster is %s instead of %s: the process starts again", now, before)
}

package component

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// reloadInterval is the interval of checks of a file.
const reloadInterval = time.Second

// WatchFile calls change whenever the content of a file changes, and once for the first content,
// until ctx is done.
func WatchFile(ctx context.Context, file string, change func()) {
	tick := time.NewTicker(reloadInterval)
	defer tick.Stop()
	for last := []byte(nil); ; {
		if content, err := os.ReadFile(file); err == nil && !bytes.Equal(content, last) {
			last = content
			change()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// machineObjects reads the settings of machine objects. dir is the directory of the process.
func machineObjects(dir string) (nodespec.MachineObjects, error) {
	file := filepath.Join(dir, nodespec.MachineObjectsFile)
	content, err := os.ReadFile(file)
	if err != nil {
		return nodespec.MachineObjects{}, fmt.Errorf("machine objects: %w", err)
	}
	var s nodespec.MachineObjects
	if err := json.Unmarshal(content, &s); err != nil {
		return s, fmt.Errorf("machine objects: %s: cannot decode: %w", file, err)
	}
	return s, nil
}

// WhileMachineObjects calls run while Cluster.spec.kubernetes.machineObjects is enabled, until ctx
// is done. When the field is disabled, it ends run by run's context. When another of the settings
// changes, it ends run and calls it again. While the field is disabled, it calls idle. run must
// return nil when its context is done. If run returns an error, or returns before its context is
// done, WhileMachineObjects returns the same value. dir is the directory of the process.
// WhileMachineObjects reads the file of the settings each second. A watch would cost more: each
// watcher of fsnotify has a stack of 131 KiB, and a read takes some 13 µs.
func WhileMachineObjects(ctx context.Context, dir string, idle func(), run func(context.Context, nodespec.MachineObjects) error) error {
	now, err := machineObjects(dir)
	if err != nil {
		return err
	}
	tick := time.NewTicker(reloadInterval)
	defer tick.Stop()
	for {
		for !now.Enabled {
			idle()
			if now, err = awaitChange(ctx, dir, tick.C, now, nil); err != nil {
				return nil
			}
		}
		running, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- run(running, now) }()
		next, unchanged := awaitChange(ctx, dir, tick.C, now, ended)
		cancel()
		if err := <-ended; err != nil || unchanged != nil {
			return err
		}
		now = next
	}
}

// errUnchanged means that a wait has ended without a change.
var errUnchanged = errors.New("unchanged")

// awaitChange waits until the file has settings other than now, and returns the new settings. It
// returns errUnchanged if ctx is done, or if run has ended first; the result of run stays in the
// channel ended. A file that cannot be read counts as unchanged.
func awaitChange(ctx context.Context, dir string, tick <-chan time.Time, now nodespec.MachineObjects, ended chan error) (nodespec.MachineObjects, error) {
	for {
		select {
		case <-tick:
			if next, err := machineObjects(dir); err == nil && next != now {
				return next, nil
			}
		case err := <-ended:
			ended <- err
			return now, errUnchanged
		case <-ctx.Done():
			return now, errUnchanged
		}
	}
}

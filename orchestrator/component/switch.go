package component

import (
	"bytes"
	"context"
	"encoding/json"
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

// machineObjects reads whether machine objects are enabled. dir is the directory of the process.
func machineObjects(dir string) (bool, error) {
	file := filepath.Join(dir, nodespec.MachineObjectsFile)
	content, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("machine objects: %w", err)
	}
	var s nodespec.MachineObjects
	if err := json.Unmarshal(content, &s); err != nil {
		return false, fmt.Errorf("machine objects: %s: cannot decode: %w", file, err)
	}
	return s.Enabled, nil
}

// WhileMachineObjects runs a function while Cluster.spec.kubernetes.machineObjects is enabled, and
// ends it when the field is disabled, until ctx is done. dir is the directory of the process. The
// function returns nil when its context is done; any other return ends WhileMachineObjects with
// the same value. idle is called when the function does not run. It reads the value of the file
// each second, so it misses no value that stays. A watch would cost more: each watcher of fsnotify
// has a stack of 131 KiB, and a read takes some 13 µs.
func WhileMachineObjects(ctx context.Context, dir string, idle func(), run func(context.Context) error) error {
	on, err := machineObjects(dir)
	if err != nil {
		return err
	}
	tick := time.NewTicker(reloadInterval)
	defer tick.Stop()
	for {
		if !on {
			idle()
			if !awaitValue(ctx, dir, tick.C, true, nil) {
				return nil
			}
		}
		running, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- run(running) }()
		disabled := awaitValue(ctx, dir, tick.C, false, ended)
		cancel()
		if err := <-ended; err != nil || !disabled {
			return err
		}
		on = false
	}
}

// awaitValue waits until the file has a value. It returns false if ctx or the function ends first;
// the result of the function stays in ended. A file that cannot be read counts as unchanged.
func awaitValue(ctx context.Context, dir string, tick <-chan time.Time, want bool, ended chan error) bool {
	for {
		select {
		case <-tick:
			if on, err := machineObjects(dir); err == nil && on == want {
				return true
			}
		case err := <-ended:
			ended <- err
			return false
		case <-ctx.Done():
			return false
		}
	}
}

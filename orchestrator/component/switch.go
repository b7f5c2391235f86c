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
// the same value. idle is called when the function does not
// run.
func WhileMachineObjects(ctx context.Context, dir string, idle func(), run func(context.Context) error) error {
	changed := make(chan struct{}, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go WatchFile(watching, filepath.Join(dir, nodespec.MachineObjectsFile), func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	for idling := false; ; {
		on, err := machineObjects(dir)
		if err != nil {
			return err
		}
		if !on {
			if !idling {
				idling = true
				idle()
			}
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		idling = false
		running, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- run(running) }()
		err = awaitDisabled(running, dir, changed, ended)
		cancel()
		if err != errDisabled {
			return err
		}
		<-ended
	}
}

// errDisabled is the result of awaitDisabled if the function still runs.
var errDisabled = errors.New("machine objects are disabled")

// awaitDisabled returns errDisabled when the file disables machine objects, or the result of a
// function that ended before.
func awaitDisabled(ctx context.Context, dir string, changed <-chan struct{}, ended <-chan error) error {
	for {
		select {
		case err := <-ended:
			return err
		case <-changed:
			if on, err := machineObjects(dir); err == nil && !on {
				return errDisabled
			}
		case <-ctx.Done():
			return <-ended
		}
	}
}

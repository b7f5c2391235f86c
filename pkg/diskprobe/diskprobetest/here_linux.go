// Package diskprobetest examines disks that a test itself has written. It can do this in the
// process of the test, because these disks are trusted.
package diskprobetest

import (
	"context"
	"encoding/json"
	"os"

	"github.com/orlop-os/orlop/pkg/diskprobe"
)

// ProbeInProcess examines disks as the confined process of package diskprobe does, but in the
// calling process.
func ProbeInProcess(ctx context.Context, devices []diskprobe.Device) []diskprobe.DeviceResult {
	start := func(_ context.Context, question []byte, files []*os.File, _ int) ([]byte, error) {
		var q diskprobe.Request
		if err := json.Unmarshal(question, &q); err != nil {
			return nil, err
		}
		return json.Marshal(diskprobe.Examine(q, files[0], files[1:]))
	}
	var results []diskprobe.DeviceResult
	for _, d := range devices {
		a, err := diskprobe.Probe(ctx, d, nil, start)
		results = append(results, diskprobe.DeviceResult{Device: d, Answer: a, Err: err})
	}
	return results
}

package integration

import (
	"context"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// monitorTime is the deadline of a command to the QEMU monitor.
const monitorTime = 30 * time.Second

func (s *story) plugVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "plug NAME DISK MIB")
	mib, err := strconv.Atoi(args[2])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), monitorTime)
	defer cancel()
	m := s.machine(ts, args[0])
	ts.Check(m.Monitor(ctx, "blockdev-add", map[string]any{"driver": "null-co", "node-name": args[1], "size": mib << 20, "read-zeroes": true}))
	ts.Check(m.Monitor(ctx, "device_add", map[string]any{"driver": "scsi-hd", "bus": "scsi0.0", "id": args[1], "drive": args[1]}))
	s.note("disk %s is plugged into %s", args[1], args[0])
}

func (s *story) unplugVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "unplug NAME DISK")
	ctx, cancel := context.WithTimeout(context.Background(), monitorTime)
	defer cancel()
	ts.Check(s.machine(ts, args[0]).Monitor(ctx, "device_del", map[string]any{"id": args[1]}))
	s.note("disk %s is taken from %s", args[1], args[0])
}

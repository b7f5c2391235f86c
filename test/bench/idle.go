package main

import (
	"context"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/test/machinestate"
)

// measureIdle measures the use of processors while no client sends a request. The machine reports
// its own figures before and after the measured time. The processor time of the emulator is read
// between the two reports, so it contains no work for them. The machine's figures contain the
// second half of the work for the first report, and the first half of the work for the second
// report.
func (b *boot) measureIdle(ctx context.Context) (idleFigures, error) {
	before, err := machinestate.ReadUse(ctx, b.client)
	if err != nil {
		return idleFigures{}, err
	}
	begin, err := takeUse(b.machine)
	if err != nil {
		return idleFigures{}, err
	}
	if err := backoff.Sleep(ctx, b.idle); err != nil {
		return idleFigures{}, err
	}
	end, err := takeUse(b.machine)
	if err != nil {
		return idleFigures{}, err
	}
	after, err := machinestate.ReadUse(ctx, b.client)
	if err != nil {
		return idleFigures{}, err
	}
	return newIdleFigures(begin, end, before, after), nil
}

func newIdleFigures(begin, end use, before, after machinestate.Use) idleFigures {
	emulator := end.perMinute(begin)
	f := idleFigures{IdleProcessor: &emulator, IdleByService: map[string]float64{}}
	minutes := (after.Uptime - before.Uptime) / 60
	if busy := after.BusySince(before); busy != nil {
		seconds := *busy * float64(after.CPUs) * 60
		f.IdleBusy = &seconds
	}
	for name, seconds := range after.Since(before) {
		f.IdleByService[name] = seconds / minutes
	}
	return f
}

package debug

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/debug/bootlog"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/kernel/kmsg"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The kernel log on DATA (package bootlog): the log of this boot, written while it runs, so that
// the next boot can show it; and the log that the kernel saved in the firmware when it crashed. A
// machine that is not installed stores neither.

// kernelLogInterval is the delay from a kernel message to the write of its batch. So a power cut
// loses about this much of the log.
const kernelLogInterval = 5 * time.Second

// logWriter writes the kernel log until it is stopped.
type logWriter struct {
	stop  context.CancelFunc
	ended chan struct{}
}

func (t *Tools) bootLog() *bootlog.Log {
	return &bootlog.Log{
		Dir: paths.KernelLog, Every: kernelLogInterval,
		Started: t.deps.Started,
		Report:  func(err error) { t.deps.Event("kernel", "failure", err.Error()) },
	}
}

// StartKernelLog starts the kernel log. It is called when a disk is mounted; only the first call
// has an effect.
func (t *Tools) StartKernelLog() {
	ctx, stop := context.WithCancel(context.Background()) // the log includes the shutdown
	k := &logWriter{stop: stop, ended: make(chan struct{})}
	if !t.kernelLog.CompareAndSwap(nil, k) {
		stop()
		return
	}
	l := t.bootLog()
	if err := l.Begin(); err != nil {
		l.Report(err)
		close(k.ended)
		return
	}
	go func() {
		defer close(k.ended)
		_ = panics.Do("the kernel's last log", func() error { t.saveCrash(l); return nil })
		follow := func(ctx context.Context, each func(kmsg.Record) error) error { return kmsg.Follow(ctx, 0, each) }
		_ = panics.Do("the kernel's log", func() error {
			if err := l.Run(ctx, follow); !errors.Is(err, context.Canceled) {
				l.Report(err)
			}
			return nil
		})
	}()
}

// EndKernelLog writes the rest of the kernel log and closes it.
func (t *Tools) EndKernelLog(ctx context.Context) {
	k := t.kernelLog.Load()
	if k == nil {
		return
	}
	k.stop()
	select {
	case <-k.ended:
	case <-ctx.Done():
	}
}

// saveCrash stores the log of a kernel crash, and enables the kernel to save the next log. Not
// every machine can save a log.
func (t *Tools) saveCrash(l *bootlog.Log) {
	if err := t.deps.LoadModules("efi_pstore"); err != nil && !errors.Is(err, kmod.ErrNotFound) {
		l.Report(err)
	}
	store := mount.Mount{Source: "pstore", Target: paths.Run + "/pstore", Type: "pstore", Flags: mount.NoSuid | mount.NoDev | mount.NoExec}
	if store.Do() != nil {
		return // this kernel has no pstore
	}
	had, err := l.SaveCrash(store.Target)
	if err := errors.Join(err, mount.Unmount(store.Target)); err != nil {
		l.Report(err)
	}
	if had {
		t.deps.Console("the kernel crashed earlier and saved the end of its log: `orlopctl dmesg --crash` shows it")
	}
}

// StoredKernelLog sends a stored kernel log.
func (t *Tools) StoredKernelLog(r *api.KernelLogRequest, send func(*api.LogLine) error) error {
	if r.Follow || r.PreviousBoot && r.Crash {
		return status.Error(codes.InvalidArgument, "kernel log: the logs of the previous boot and of a crash cannot be followed, and only one of them can be requested")
	}
	read := t.bootLog().PreviousBoot
	if r.Crash {
		read = t.bootLog().Crash
	}
	lines, err := read()
	if errors.Is(err, fs.ErrNotExist) {
		return status.Error(codes.NotFound, err.Error())
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if r.Tail > 0 {
		lines = lines[max(0, len(lines)-int(r.Tail)):]
	}
	for _, l := range lines {
		if err := send(&api.LogLine{Time: timestamppb.New(l.Time), Text: l.Text, Priority: uint32(l.Priority)}); err != nil {
			return err
		}
	}
	return nil
}

package logship

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/logship/sender"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/kubeaudit"
	"github.com/orlop-os/orlop/pkg/kernel/kmsg"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestRecordBegunAnew checks the source of an audit log that was created again, so its numbers
// start at 1. The source sends its lines although the stored cursor of the former log has a higher
// number.
func TestRecordBegunAnew(t *testing.T) {
	l, err := audit.Open(t.TempDir(), audit.DefaultSize, audit.DefaultFiles)
	check(t, err)
	check(t, l.Append(time.Now(), audit.Call{Status: "PermissionDenied"}))
	source, stop := auditSource("audit", l), fmt.Errorf("stop")
	for _, after := range []uint64{0, 4711} {
		err := source.Follow(t.Context(), func(string) uint64 { return after }, func(l sender.Record) error {
			if l.Number != 1 || l.Boot != "" || l.Severity != severityNotice {
				t.Errorf("%+v", l)
			}
			return stop
		})
		if err != stop || source.Newest()["audit"] != 1 {
			t.Error(err)
		}
	}
}

// syncedLog returns the audit log of Kubernetes in a directory. Its files are synced until the end
// of the test.
func syncedLog(t *testing.T, dir string) *kubeaudit.Log {
	log := kubeaudit.NewLog(dir)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		log.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return log
}

// TestKubernetesAudit checks that the source returns the lines of the audit log of Kubernetes in
// order, also lines that are written after its start. If the cursor is beyond the end of the log,
// the source starts with the first line.
func TestKubernetesAudit(t *testing.T) {
	dir := t.TempDir()
	file, err := os.OpenFile(filepath.Join(dir, kubeaudit.File), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(t, err)
	defer file.Close()
	w, err := kubeaudit.NewWriter(dir, file)
	check(t, err)
	event := func(code int) {
		_, err := fmt.Fprintf(w, "{\"kind\":\"Event\",\"responseStatus\":{\"code\":%d},\"stageTimestamp\":\"2026-11-29T12:00:00.000000Z\"}\n", code)
		check(t, err)
	}
	event(200)
	event(403)
	source, stop := kubernetesSource(syncedLog(t, dir)), errors.New("stop")
	for after, first := range map[uint64]uint64{0: 1, 1: 2, 4711: 1} {
		next := first
		err := source.Follow(t.Context(), func(string) uint64 { return after }, func(l sender.Record) error {
			if l.Source != "kubernetes-audit" || l.Boot != "" || l.Number != next || l.Time.Year() != 2026 || (l.Severity == severityNotice) != strings.Contains(l.Text, "403") {
				t.Errorf("after %d: %+v", after, l)
			}
			if next++; l.Number == source.Newest()["kubernetes-audit"] {
				if l.Number%2 == 1 {
					return stop
				}
				event(200)
			}
			return nil
		})
		if err != stop {
			t.Error(err)
		}
		event(403)
	}
}

// TestKubernetesAuditLater checks a log with a directory that appears after the start of the
// source, because the disk is mounted later. The source must begin after the stored position.
func TestKubernetesAuditLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	stop := errors.New("stop")
	err := kubernetesSource(syncedLog(t, dir)).Follow(t.Context(), func(string) uint64 {
		time.AfterFunc(10*time.Millisecond, func() {
			hidden := t.TempDir()
			file, err := os.Create(filepath.Join(hidden, kubeaudit.File))
			if err != nil {
				t.Error(err)
				return
			}
			defer file.Close()
			w, err := kubeaudit.NewWriter(hidden, file)
			for range 7 {
				_, e := w.Write([]byte("{\"kind\":\"Event\"}\n"))
				err = errors.Join(err, e)
			}
			if err := errors.Join(err, os.Rename(hidden, dir)); err != nil {
				t.Error(err)
			}
		})
		return 6
	}, func(l sender.Record) error {
		if l.Number != 7 {
			t.Errorf("line %d", l.Number)
		}
		return stop
	})
	if err != stop {
		t.Error(err)
	}
}

// TestRings checks that the line numbers of a service continue after its log was replaced. Unread
// lines of the former log are lost: the numbers of the next lines show this gap.
func TestRings(t *testing.T) {
	var all rings
	write := func(r *supervise.LogRing, lines ...string) *supervise.LogRing {
		for _, l := range lines {
			fmt.Fprintln(r, l)
		}
		return r
	}
	all.set("apid", write(supervise.NewLogRing(10, 1000), "a", "b"))
	all.set("apid", write(all.get()["apid"].ring, "c"))
	if n := all.get()["apid"]; n.before != 0 || n.newest() != 3 {
		t.Errorf("%+v", n)
	}
	all.set("apid", write(supervise.NewLogRing(10, 1000), "d", "e"))
	n := all.get()["apid"]
	if n.newest() != 5 {
		t.Errorf("%+v", n)
	}
	for after, want := range map[uint64]string{0: "4d 5e", 2: "4d 5e", 4: "5e"} {
		var got []string
		n.tail(t.Context(), after, func(l supervise.LogLine) error {
			got = append(got, fmt.Sprint(n.before+l.Seq, l.Text))
			if l.Seq == 2 {
				return fmt.Errorf("stop")
			}
			return nil
		})
		if strings.Join(got, " ") != want {
			t.Errorf("after %d: %v; want %s", after, got, want)
		}
	}
}

// TestKernelLines checks that kernel records have increasing numbers after the cursor, and times in
// the past.
func TestKernelLines(t *testing.T) {
	if _, err := kmsg.Tail(1); err != nil {
		t.Skipf("needs to read the kernel's log, as root or with kernel.dmesg_restrict=0: %v", err)
	}
	source, stop, last, count := kernelSource("b"), fmt.Errorf("stop"), uint64(0), 0
	newest := source.Newest()["kernel"]
	if newest < 2 {
		t.Skip("needs two lines in the kernel's log")
	}
	err := source.Follow(t.Context(), func(string) uint64 { return newest - 2 }, func(l sender.Record) error {
		if l.Number < newest-1 || l.Number <= last || l.Time.After(time.Now()) {
			t.Errorf("after %d: %+v", last, l)
		}
		last = l.Number
		if count++; l.Number >= newest {
			return stop
		}
		return nil
	})
	if err != stop || count < 1 || count > 2 {
		t.Errorf("%d lines, %v", count, err)
	}
}

package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
)

// TestRun checks the order of the steps, and the reset after a failure.
func TestRun(t *testing.T) {
	panics.OnPanic(func(*panics.Error) {})
	t.Cleanup(func() { panics.OnPanic(nil) })
	ok := func(context.Context, int) error { return nil }
	takes := func(long time.Duration) func(context.Context, int) error {
		return func(context.Context, int) error { <-time.After(long); return nil }
	}
	for _, c := range []struct {
		name     string
		steps    []Step[int]
		checking time.Duration // duration of the check of a disk, from the start
		stopped  string        // step after which a shutdown begins
		want     []string
	}{
		{"all steps", []Step[int]{{Name: "a", Do: ok}, {Name: "b", WaitsFor: "the disk", Do: ok}}, 0, "", []string{"0s mark machined", "0s enter a", "0s mark a", "0s enter b the disk", "0s mark b"}},
		{"a shutdown", []Step[int]{{Name: "a", Do: ok}, {Name: "b", Do: ok}}, 0, "a", []string{"0s mark machined", "0s enter a", "0s mark a"}},
		{"a failure", []Step[int]{{Name: "a", Do: func(context.Context, int) error { return errors.New("no disk") }}, {Name: "b", Do: ok}}, 0, "", []string{
			"0s mark machined", "0s enter a", "0s boot: a: no disk; resetting in 10s", "10s reset boot: a failed"}},
		{"a panic", []Step[int]{{Name: "a", Do: func(context.Context, int) error { panic("a fake") }}}, 0, "", []string{
			"0s mark machined", "0s enter a", "0s boot: a: boot step a: panic: a fake; resetting in 10s", "10s reset boot: a failed"}},
		{"a step that hangs", []Step[int]{{Name: "a", Do: takes(20 * time.Minute)}, {Name: "b", Do: takes(time.Hour)}}, 0, "", []string{
			"0s mark machined", "0s enter a", "20m0s mark a", "20m0s enter b", "30m0s boot: b: not done within 30m0s; resetting in 10s", "30m10s reset boot: b failed"}},
		{"a check of a disk", []Step[int]{{Name: "a", Do: takes(70 * time.Minute)}}, 2 * time.Hour, "", []string{
			"0s mark machined", "0s enter a", "30m0s storage: e2fsck still checks a disk after 30m0s; the boot continues afterwards",
			"1h0m0s storage: e2fsck still checks a disk after 1h0m0s; the boot continues afterwards", "1h10m0s mark a"}},
		{"a version on trial", []Step[int]{{Name: "a", Do: ok, Remaining: func(int) time.Duration { return 5 * time.Minute }}, {Name: "b", Do: takes(time.Hour)}}, 0, "", []string{
			"0s mark machined", "0s enter a", "0s mark a", "0s enter b", "5m0s boot: b: not done within 5m0s; resetting in 10s", "5m10s reset boot: b failed"}},
		{"an installed version", []Step[int]{{Name: "a", Do: ok, Remaining: func(int) time.Duration { return 0 }}, {Name: "b", Do: takes(10 * time.Minute)}}, 0, "", []string{
			"0s mark machined", "0s enter a", "0s mark a", "0s enter b", "10m0s mark b"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, stopping, got := time.Now(), false, []string(nil)
			add := func(parts ...string) {
				got = append(got, strings.TrimSuffix(fmt.Sprintf("%v %s", time.Since(began), strings.Join(parts, " ")), " "))
			}
			Run(t.Context(), c.steps, 1, Deps{
				Stopping: func() bool { return stopping },
				Enter:    func(name, waits string) { add("enter", name, waits) },
				Mark:     func(name string) { add("mark", name); stopping = name == c.stopped },
				Console:  func(line string) { add(line) },
				Reset:    func(why string) { add("reset", why) },
				Checking: func() bool { return time.Since(began) < c.checking },
			})
			if !slices.Equal(got, c.want) {
				t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			<-time.After(2 * time.Hour) // until the steps that hang end
		})
	}
}

// TestCheckDeadline checks that, if the check of a disk does not end, the machine resets after a
// day (checkDeadline).
func TestCheckDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, why := time.Now(), ""
		hangs := Step[int]{Name: "storage", Do: func(ctx context.Context, _ int) error { <-time.After(48 * time.Hour); return nil }}
		none := func(string) {}
		Run(t.Context(), []Step[int]{hangs}, 1, Deps{
			Stopping: func() bool { return false }, Enter: func(string, string) {}, Mark: none, Console: none,
			Reset: func(w string) { why = w }, Checking: func() bool { return true },
		})
		if why != "boot: storage failed" || time.Since(began) != checkDeadline+failPause {
			t.Errorf("%q after %v", why, time.Since(began))
		}
		<-time.After(48 * time.Hour)
	})
}

// TestChecking checks that Checking reports whether a process e2fsck runs. It must ignore
// /proc/self.
func TestChecking(t *testing.T) {
	proc := t.TempDir()
	run := func(pid, name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run("1", "machined")
	run("self", "e2fsck")
	if Checking(proc) {
		t.Error("Checking returns true, although no process is e2fsck")
	}
	run("77", "e2fsck")
	if !Checking(proc) {
		t.Error("Checking returns false, although e2fsck runs")
	}
}

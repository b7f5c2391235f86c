package activeconfig

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// tuned is a configuration with a kernel parameter, and with a module if module is not empty.
func tuned(value, module string) []byte {
	modules := ""
	if module != "" {
		modules = ", kernelModules: [" + module + "]"
	}
	return []byte("apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: n1}\nspec: {role: controlplane, sysctls: {vm.swappiness: '" + value + "'}" + modules + "}\n")
}

// TestBootOnTrial boots a machine with a configuration that was staged with a trial. A call
// confirms the configuration only after that boot. Without a confirmation, the next boot (as after
// a crash) reverts the configuration.
func TestBootOnTrial(t *testing.T) {
	m := testManager(t, document("eth0"))
	m.deps.Proves = func(*config.Config, string) bool { return true }
	m.deps.AwaitNetwork = func(context.Context, *config.Config) error { return nil }
	confirm := func(name string) codes.Code {
		t.Helper()
		_, err := m.Confirm(t.Context(), api.Caller{}, name)
		return status.Code(err)
	}
	boot := func(adopt bool) (a Active, by string, err error) {
		t.Helper()
		a, _, by, err = m.LoadAtBoot(adopt)
		m.cell.Set(a)
		return a, by, err
	}
	stage := func(text []byte) {
		t.Helper()
		if err := m.Store().StageTrial(text, "mine", 3*time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	stage(document("eth1"))
	for name, want := range map[string]codes.Code{"mine": codes.Unavailable, "": codes.Unavailable, "another": codes.FailedPrecondition} {
		if got := confirm(name); got != want {
			t.Errorf("before the boot, %q: %v, want %v", name, got, want)
		}
	}
	if a, by, err := boot(false); err != nil || a.OnTrial() || a.Config.Network.Spec.Links[0].Name != "eth0" || by != "the start" {
		t.Errorf("a boot of another version: %+v, %s, %v", a, by, err)
	}
	a, by, err := boot(true)
	if err != nil || a.Config.Network.Spec.Links[0].Name != "eth1" || a.TrialName != "mine" || by != "the boot, from the staged configuration" {
		t.Fatalf("the boot with the staged configuration: %+v, %s, %v", a, by, err)
	}
	if left := time.Until(a.TrialEnd); left <= 2*time.Minute || left > 3*time.Minute {
		t.Errorf("the trial ends in %v, want 3 minutes", left)
	}
	if fallback := m.Fallback(a); fallback == nil || fallback.Network.Spec.Links[0].Name != "eth0" {
		t.Errorf("the trial reverts to %+v", fallback)
	}
	if a, by, err := boot(true); err != nil || a.OnTrial() || a.Config.Network.Spec.Links[0].Name != "eth0" || by != "the boot, after an unconfirmed trial" {
		t.Errorf("after a crash: %+v, %s, %v", a, by, err)
	}
	if got := confirm("mine"); got != codes.FailedPrecondition {
		t.Errorf("a confirmation after the revert: %v", got)
	}

	stage(document("eth1"))
	if _, _, err := boot(true); err != nil || confirm("mine") != codes.OK {
		t.Errorf("not confirmed: %v", err)
	}
	if a, _, err := boot(true); err != nil || a.OnTrial() || a.Config.Network.Spec.Links[0].Name != "eth1" {
		t.Errorf("after the confirmation: %+v, %v", a, err)
	}

	stage([]byte("kind: [\n"))
	m.AddToHistory(document("eth1"), "admin")
	if a, by, err := boot(true); err != nil || a.OnTrial() || a.Problem != "" || a.Config.Network.Spec.Links[0].Name != "eth1" || by != "the boot, after an unusable trial" {
		t.Errorf("a staged configuration that is unreadable: %+v, %s, %v", a, by, err)
	}
	list, err := m.History()
	if err != nil || len(list) != 3 {
		t.Fatalf("history: %v, %v", list, err)
	}
	for i, want := range []string{"on trial; it cannot be used: ", "the trial has ended; the previous configuration is active again"} {
		if e := list[i+1]; len(e.Changes) != 1 || !strings.HasPrefix(e.Changes[0], want) || !strings.HasPrefix(e.By, "the boot") {
			t.Errorf("history: %v, want %q", e, want)
		}
	}
}

// TestOverdueTrial boots a machine on which the revert of a trial fails, because the record of the
// trial cannot be read. No client can confirm the configuration then. When the record is readable,
// the revert succeeds, without a reboot.
func TestOverdueTrial(t *testing.T) {
	for name, tried := range map[string][]byte{"readable": tuned("20", ""), "unusable": []byte("kind: [\n")} {
		t.Run(name, func(t *testing.T) {
			m := testManager(t, document("eth0"))
			m.deps.Reboot = func(why string) error { t.Errorf("reboots %s", why); return nil }
			if err := m.Store().StartTrial(tried); err != nil {
				t.Fatal(err)
			}
			record := filepath.Join(m.Store().Dir, "return.json")
			saved, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			// a directory, so the record cannot be read
			if err := errors.Join(os.Remove(record), os.Mkdir(record, 0o700)); err != nil {
				t.Fatal(err)
			}
			a, _, _, err := m.LoadAtBoot(true)
			if !a.OnTrial() || !a.Overdue || (err != nil) != (a.Config == nil) || (a.Config == nil) != (name == "unusable") {
				t.Fatalf("after the boot, the active configuration is %+v, %v", a, err)
			}
			m.cell.Set(a)
			if _, err := m.Confirm(t.Context(), api.Caller{}, ""); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("confirmed: %v", err)
			}
			if _, err := m.revertTrial(a.TrialEnd); err == nil || !m.Current().OnTrial() {
				t.Errorf("reverted without its record: %v", err)
			}
			if err := errors.Join(os.Remove(record), os.WriteFile(record, saved, 0o600)); err != nil {
				t.Fatal(err)
			}
			if _, err := m.revertTrial(a.TrialEnd); err != nil {
				t.Fatal(err)
			}
			if now := m.Current(); now.OnTrial() || now.Overdue || now.Config == nil || now.Config.Network.Spec.Links[0].Name != "eth0" {
				t.Errorf("after the revert: %+v", now)
			}
		})
	}
}

// TestFailedRevert checks that a failed revert postpones the end of its trial, but changes nothing
// if a client has meanwhile confirmed this trial or started another trial.
func TestFailedRevert(t *testing.T) {
	end := time.Now()
	for name, c := range map[string]struct {
		now  time.Time
		same bool
	}{"the same trial": {end, false}, "confirmed": {time.Time{}, true}, "another trial": {end.Add(time.Hour), true}} {
		if got := deferred(Active{TrialEnd: c.now}, end).TrialEnd; got.Equal(c.now) != c.same || !c.same && time.Until(got) <= 0 {
			t.Errorf("%s: the trial ends at %v, before the revert it was %v", name, got, c.now)
		}
	}
}

// TestRevertTrial reverts trials of kernel settings. The machine reboots if a setting can be
// reverted only by a boot, or if a parameter does not return to its former value in time.
func TestRevertTrial(t *testing.T) {
	for name, c := range map[string]struct {
		before, tried []byte
		left          [][]string // answers of UnrestoredSysctls; the last one repeats
		err           error
		want          string // the reason of the reboot; empty: no reboot
	}{
		"a parameter is restored":     {tuned("10", ""), tuned("20", ""), [][]string{{"vm.swappiness"}, nil}, nil, ""},
		"a parameter is added":        {document("eth0"), tuned("20", ""), [][]string{nil}, nil, ""},
		"a parameter is not restored": {tuned("10", ""), tuned("20", ""), [][]string{{"vm.swappiness is 20"}}, nil, "to revert kernel parameters of a configuration on trial: vm.swappiness is 20"},
		"a parameter cannot be read":  {tuned("10", ""), tuned("20", ""), [][]string{nil}, errors.New("cannot read"), "to revert kernel parameters of a configuration on trial: cannot read"},
		"a module":                    {tuned("10", ""), tuned("10", "sctp"), [][]string{{"none"}}, nil, "to revert the kernel parameters or modules of a configuration on trial"},
		"no parameter and no module":  {document("eth0"), document("eth1"), [][]string{{"none"}}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := testManager(t, c.before)
				reboots, reads := make(chan string, 1), 0
				m.deps.Reboot = func(why string) error { reboots <- why; return nil }
				m.deps.UnrestoredSysctls = func(active *config.Config, names []string) ([]string, error) {
					if active != m.Current().Config || !slices.Equal(names, []string{"vm.swappiness"}) {
						t.Errorf("UnrestoredSysctls is called with %q", names)
					}
					reads++
					return c.left[min(reads, len(c.left))-1], c.err
				}
				if err := m.Store().StartTrial(c.tried); err != nil {
					t.Fatal(err)
				}
				tried, err := m.Reload()
				if err != nil {
					t.Fatal(err)
				}
				tried.TrialEnd = time.Now()
				m.cell.Set(tried)
				left, err := m.revertTrial(tried.TrialEnd)
				if err != nil {
					t.Fatal(err)
				}
				if len(left.names) > 0 {
					m.awaitRestored(t.Context(), left, 50*time.Millisecond, time.Millisecond)
				}
				got := ""
				select {
				case got = <-reboots:
				default:
				}
				if got != c.want {
					t.Errorf("reboots %q, want %q", got, c.want)
				}
				if text, err := m.Store().Confirmed(); err != nil || string(text) != string(c.before) {
					t.Errorf("the configuration after the revert is %s, %v", text, err)
				}
			})
		})
	}
}

// TestRestoredLater checks that the wait for restored parameters ends when another configuration
// becomes active, and when the machine shuts down. If the reboot fails, the console shows the
// error.
func TestRestoredLater(t *testing.T) {
	m, names := testManager(t, tuned("10", "")), []string{"vm.swappiness"}
	m.deps.Reboot = func(why string) error { t.Errorf("reboots %s", why); return nil }
	m.deps.UnrestoredSysctls = func(*config.Config, []string) ([]string, error) { return []string{"vm.swappiness"}, nil }
	m.awaitRestored(t.Context(), restoration{&config.Config{}, names}, time.Hour, time.Millisecond)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	m.awaitRestored(ended, restoration{m.Current().Config, names}, time.Hour, time.Millisecond)

	var lines []string
	m.deps.Console = func(line string) { lines = append(lines, line) }
	m.deps.Reboot = func(string) error { return errors.New("shuts down already") }
	m.awaitRestored(t.Context(), restoration{m.Current().Config, names}, time.Millisecond, time.Millisecond)
	if got := strings.Join(lines, "\n"); got != "shuts down already" {
		t.Errorf("the console shows %q", got)
	}
}

// TestCheckSettled checks that CheckSettled fails if a configuration is staged or on trial.
func TestCheckSettled(t *testing.T) {
	m := testManager(t, document("eth0"))
	if err := m.CheckSettled(); err != nil {
		t.Errorf("a confirmed configuration: %v", err)
	}
	if err := m.Store().Stage(document("eth1")); err != nil {
		t.Fatal(err)
	}
	if err := m.CheckSettled(); err == nil {
		t.Error("no error, although another configuration is staged")
	}
	if err := m.Store().DropStaged(); err != nil {
		t.Fatal(err)
	}
	m.cell.Update(func(a Active) Active { a.TrialEnd = time.Now().Add(time.Minute); return a })
	if err := m.CheckSettled(); err == nil {
		t.Error("no error, although the configuration is on trial")
	}
}

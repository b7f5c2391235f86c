package activeconfig

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// requested returns the activation of documents that the client dora requests.
func requested(t *testing.T, documents []byte, trial time.Duration) Activation {
	t.Helper()
	c, problems := config.Parse("", documents)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return Activation{Config: c, Documents: documents, By: "dora", Trial: trial, TrialName: "mine", Remark: ", without a trial"}
}

// TestActivate checks that a configuration becomes active and is stored, with and without a trial.
// If a second trial replaces a first trial, it records the configuration of the first in Tried.
func TestActivate(t *testing.T) {
	m := testManager(t, document("eth0"))
	var events []string
	m.deps.Event = func(_, message string) { events = append(events, message) }
	activate := func(a Activation) Active {
		t.Helper()
		got, err := m.Activate(m.Current(), a)
		if err != nil {
			t.Fatal(err)
		}
		if now := m.Current(); now.Config != a.Config || !now.At.Equal(got.At) {
			t.Errorf("the active configuration is %+v", now)
		}
		return got
	}
	if err := m.Stage(requested(t, document("eth7"), 0)); err != nil {
		t.Fatal(err)
	}
	got := activate(requested(t, document("eth1"), 0))
	if got.OnTrial() || got.TrialName != "" || !got.Due.IsZero() || got.SameNetwork || got.Source != "API (dora)" || !m.Store().Staged().IsZero() {
		t.Errorf("without a trial: %+v", got)
	}
	if a, _, err := m.Load(); err != nil || a.Config.Network.Spec.Links[0].Name != "eth1" {
		t.Errorf("the stored configuration is %+v, %v", a, err)
	}
	first := requested(t, document("eth2"), time.Minute)
	first.CutsOff = true
	got = activate(first)
	if left := time.Until(got.TrialEnd); left <= 0 || left > time.Minute || got.TrialName != "mine" || got.SameNetwork || got.Due.IsZero() || len(got.Tried) != 0 {
		t.Errorf("with a trial: %+v", got)
	}
	got = activate(requested(t, document("eth2"), time.Minute))
	if len(got.Tried) != 1 || got.Tried[0] != first.Config || got.SameNetwork {
		t.Errorf("a second trial that replaces the first: %+v", got)
	}
	if fallback := m.Fallback(got); fallback.Network.Spec.Links[0].Name != "eth1" {
		t.Errorf("the second trial reverts to %+v", fallback)
	}
	for _, want := range []string{"staged for the next boot by dora, without a trial", "applied by dora, without a trial"} {
		if !slices.Contains(events, want) {
			t.Errorf("the events %q lack %q", events, want)
		}
	}
	if entries, err := m.History(); err != nil || len(entries) < 2 || entries[len(entries)-1].By != "dora" {
		t.Errorf("the history has %v, %v", entries, err)
	}
}

// TestSameNetwork checks that SameNetwork is true for a trial that does not change the network. The
// confirmation of such a trial does not wait for the network.
func TestSameNetwork(t *testing.T) {
	m := testManager(t, tuned("10", ""))
	got, err := m.Activate(m.Current(), requested(t, tuned("20", ""), time.Minute))
	if err != nil || !got.SameNetwork {
		t.Errorf("the trial is %+v, %v; want SameNetwork", got, err)
	}
}

// TestRepeats checks for which requests Repeats returns true: they change nothing.
func TestRepeats(t *testing.T) {
	m := testManager(t, document("eth0"))
	same := requested(t, document("eth0"), 0).Config
	auto, try := api.ApplyRequest_MODE_AUTO, api.ApplyRequest_MODE_TRY
	if !m.Repeats(m.Current(), same, auto) {
		t.Error("Repeats returns false for the active configuration")
	}
	onTrial := m.Current()
	onTrial.TrialEnd = time.Now()
	if m.Repeats(m.Current(), same, try) || m.Repeats(Active{}, same, auto) || m.Repeats(onTrial, same, auto) || m.Repeats(m.Current(), requested(t, document("eth1"), 0).Config, auto) {
		t.Error("Repeats returns true for a request that changes something")
	}
	if err := m.Stage(requested(t, document("eth1"), time.Minute)); err != nil {
		t.Fatal(err)
	}
	if m.Repeats(m.Current(), same, auto) {
		t.Error("Repeats returns true although a configuration is staged")
	}
	if trial, trying, err := m.Store().StagedTrial(); err != nil || !trying || trial.Name != "mine" || trial.Duration != time.Minute {
		t.Errorf("the staged trial is %+v, %v, %v", trial, trying, err)
	}
}

// TestStart checks that the stored configuration becomes active at boot, and that Start returns
// true only on a machine without a stored configuration. Only such a machine may adopt a
// configuration from a medium.
func TestStart(t *testing.T) {
	m := testManager(t, document("eth0"))
	m.cell.Set(Active{})
	if none := m.Start(true); none || m.Current().Config == nil || m.Current().Source != "STATE" {
		t.Errorf("with a stored configuration, Start returns %t, and the active configuration is %+v", none, m.Current())
	}
	if err := m.Store().Put([]byte("kind: Pod\n")); err != nil {
		t.Fatal(err)
	}
	if none := m.Start(true); none || m.Current().Config != nil || m.Current().Problem == "" {
		t.Errorf("with an unreadable file, Start returns %t, and the active configuration is %+v", none, m.Current())
	}
	m = testManager(t, document("eth0"))
	m.deps.Store.Dir = t.TempDir()
	if none := m.Start(true); !none {
		t.Error("Start returns false on a machine without a configuration")
	}
}

// TestState checks the topic in three cases: no cluster, a cluster, no configuration.
func TestState(t *testing.T) {
	m := testManager(t, document("eth0"))
	m.deps.WaitingServices = func(context.Context, *config.Config) ([]string, error) { return nil, errors.New("STATE hangs") }
	if s := m.State(t.Context()); !s.Present || s.Machine != "n1" || s.Role != "controlplane" || s.Cluster != "" || s.WaitingFor != nil || !s.Staged.IsZero() {
		t.Errorf("without a cluster: %+v", s)
	}
	now := m.Current()
	now.Config.Cluster = &config.Cluster{}
	now.Config.Cluster.Metadata.Name = "orlop"
	m.cell.Set(now)
	if s := m.State(t.Context()); s.Cluster != "orlop" || !slices.Equal(s.WaitingFor, []string{"STATE hangs"}) || s.KMS != nil {
		t.Errorf("with a cluster: %+v", s)
	}
	m.cell.Set(Active{Problem: "torn"})
	if s := m.State(t.Context()); s.Present || s.Problem != "torn" {
		t.Errorf("without a configuration: %+v", s)
	}
}

package dashboard

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/api"
)

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// ago returns the time d before now.
func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }

// topic returns a value of a topic, which is parsed from JSON.
func topic(t *testing.T, name, json string) *api.TopicValue {
	t.Helper()
	value := &structpb.Value{}
	if err := value.UnmarshalJSON([]byte(json)); err != nil {
		t.Fatal(err)
	}
	return &api.TopicValue{Topic: name, Value: value}
}

// sample returns a state with three machines: the first runs, the second boots, and the third is
// unreachable.
func sample(t *testing.T) State {
	s := New([]Machine{{"first", "10.0.0.11:50000"}, {"second", "10.0.0.12:50000"}, {"third", "[fd00::13]:51000"}}, false).At(now).Sized(80, 24)
	take := func(machine int, bodies ...any) {
		for _, body := range bodies {
			s = s.Apply(Message{Machine: machine, Body: body})
		}
	}
	version := &api.VersionResponse{Version: "1.2.3", Kubernetes: "v1.37.2", Kernel: "6.12.1", Slot: "A", Profile: "metal", Machine: "m1"}
	take(0, Connected{}, version, &api.HealthResponse{Healthy: true, Checks: []*api.HealthCheck{
		{Name: "configuration", Ok: true, Detail: "dev", Since: ago(30 * time.Hour)}, {Name: "etcd", Ok: true, Detail: "serving", Since: ago(29 * time.Hour)},
	}},
		topic(t, "system", `{"cpus": 4, "uptimeSeconds": 108000, "load1": 0.4213}`), topic(t, "memory", `{"total": 4294967296, "available": 3221225472}`),
		topic(t, "services", `[
			{"name": "containerd", "state": "running", "restarts": 0, "since": "2026-05-03T03:02:01Z"},
			{"name": "orchestrator-api", "state": "starting", "detail": "waits for kube-apiserver, which takes its time because etcd did",
				"restarts": 2, "since": "2026-05-04T03:00:01Z", "components": [
				{"name": "", "ready": false, "since": "2026-05-04T03:00:01Z"},
				{"name": "etcd", "ready": true, "detail": "serving", "since": "2026-05-04T03:00:01Z"},
				{"name": "kube-apiserver", "ready": false, "detail": "readyz: poststarthook", "since": "2026-05-04T03:01:01Z"}]},
			{"name": "apid", "state": "backoff", "detail": "exit status 1", "restarts": 17, "since": "2026-05-04T03:02:00Z"}]`),
		Started{Events}, &api.Event{Time: ago(time.Minute), Kind: "operation", Source: "disk", Message: "format STATE (/dev/vda4) as ext4"},
		&api.Event{Time: ago(0), Kind: "failure", Source: "service/apid",
			Message: "ended with exit status 1, and what it said last was so long that it does not fit into one row of this terminal"},
		&api.UpgradeStatus{Running: "1.2.3", From: "1.2.3", To: "1.3.0", Phase: "writing", Operation: "write version 1.3.0 to ROOT-B (/dev/vda3)",
			Done: 150 << 20, Total: 600 << 20, Started: ago(time.Minute)})
	take(1, Connected{}, &api.VersionResponse{Version: "1.3.0", Kubernetes: "v1.37.2", Kernel: "6.12.2", Slot: "B", Profile: "metal", Machine: "m2"},
		&api.HealthResponse{Checks: []*api.HealthCheck{
			{Name: "configuration", Ok: true, Detail: "dev", Since: ago(90 * time.Second)}, {Name: "etcd", Detail: "starting", Since: ago(time.Minute)}, {Name: "node", Detail: "not Ready"},
		}},
		topic(t, "system", `{"cpus": 2, "uptimeSeconds": 92, "load1": 12.5}`),
		Failed{"memory", "topic memory: there is no such topic"}, Failed{Events, "this needs the role log-reader"},
		&api.UpgradeStatus{
			Running: "1.3.0", From: "1.3.0", To: "1.4.0", Phase: "rolled back", Tries: 3, Started: ago(2 * time.Hour), Ended: ago(time.Hour),
			Reason: "version 1.4.0 was started three times and did not become healthy in five minutes: etcd: the data are of a later version",
			Log:    []string{"etcd: cannot start", "orlop: going down"},
		})
	take(2, Disconnected{Reason: "the machine cannot be reached: dial tcp [fd00::13]:51000: connect: connection refused", Next: now.Add(8 * time.Second)})
	return s
}

// press returns the state after a user has pressed these keys.
func press(s State, keys ...string) State {
	for _, key := range keys {
		s = s.Key(key)
	}
	return s
}

// withLog returns the state after the log that it shows has started and has received count lines.
func withLog(s State, count int) State {
	s = s.Apply(Message{s.Wants().Machine, Started{Logs}})
	for i := range count {
		text := fmt.Sprintf("line %d", i+1)
		if i%10 == 9 {
			text += strings.Repeat(" and on", 20)
		}
		s = s.Apply(Message{s.Wants().Machine, LogLine{s.Wants().Service, &api.LogLine{Time: timestamppb.New(now.Add(time.Duration(i) * time.Second)), Text: text}}})
	}
	return s
}

// everyScreen returns a state for each screen. The key is the name of the golden file.
func everyScreen(t *testing.T) map[string]State {
	s := sample(t)
	return map[string]State{
		"new":            New([]Machine{{"", "10.0.0.11"}}, false).At(now).Sized(80, 24),
		"overview":       s,
		"overview-waits": press(s, "j"),
		"overview-away":  press(s, "p"),
		"overview-large": s.Sized(120, 40),
		"services":       press(s, "enter", "j"),
		"services-none":  press(s, "2", "p"),
		"log":            withLog(press(s, "3"), 30),
		"log-scrolled":   press(withLog(press(s, "3"), 30), "k", "k", "k"),
		"log-refused":    press(s, "2", "j", "3").Apply(Message{0, Failed{Logs, "there is no such service"}}),
		"events":         press(s, "4"),
		"events-refused": press(s, "4", "n"),
		"upgrade":        press(s, "tab", "tab", "tab", "tab"),
		"upgrade-back":   press(s, "n", "shift+tab"),
		"help":           press(s, "?"),
		"small":          s.Sized(30, 9),
	}
}

// TestScreens compares each screen with its golden file in testdata.
func TestScreens(t *testing.T) {
	for name, s := range everyScreen(t) {
		got := s.Draw() + "\n"
		golden.Assert(t, got, name+".txt")
	}
}

// TestFits checks that each screen has as many rows as the terminal, and that no row is wider than
// the terminal. Colors do not change the text of a screen. A terminal smaller than leastWidth by
// leastHeight gets another text, which may have fewer rows.
func TestFits(t *testing.T) {
	for name, s := range everyScreen(t) {
		for _, width := range []int{1, leastWidth, 79, 80, 81, 133, 200} {
			for _, height := range []int{1, leastHeight, 24, 25, 60} {
				s := s.Sized(width, height)
				shown := s.Draw()
				rows := strings.Split(shown, "\n")
				if len(rows) != height && (width >= leastWidth && height >= leastHeight) {
					t.Errorf("%s at %d×%d: the screen has %d rows", name, width, height, len(rows))
				}
				for _, row := range rows {
					if got := ansi.StringWidth(row); got > width {
						t.Errorf("%s at %d×%d: a row is %d wide: %q", name, width, height, got, row)
					}
				}
				s.colour = true
				coloured := s.Draw()
				if ansi.Strip(coloured) != shown {
					t.Errorf("%s at %d×%d: with colors it shows\n%s\nwithout\n%s", name, width, height, ansi.Strip(coloured), shown)
				}
				if width >= leastWidth && height >= leastHeight && coloured == shown {
					t.Errorf("%s at %d×%d: there are no colors", name, width, height)
				}
			}
		}
	}
}

// TestHostile checks that the terminal receives only printable characters and line ends, even if a
// machine sends control sequences and invalid values in each field.
func TestHostile(t *testing.T) {
	evil := "\x1b[2J\x1b]0;x\a\u009b31m\r\n\u202e" + strings.Repeat("é", 300) + "\xff"
	s := New([]Machine{{evil, evil}}, false).At(now).Sized(100, 30)
	evilServices, err := structpb.NewList([]any{map[string]any{"name": "\x1b[2J\u202e", "state": "\x1b[2J", "detail": "\r\n\u009b"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []any{
		Connected{}, &api.VersionResponse{Version: evil, Kubernetes: evil, Kernel: evil, Slot: evil, Profile: evil, Machine: evil, BootMedium: evil},
		&api.HealthResponse{Checks: []*api.HealthCheck{{Name: evil, Detail: evil}}}, topic(t, "system", `{"cpus": 1, "uptimeSeconds": 1e300, "load1": 1e300}`),
		topic(t, "memory", `{"total": 1, "available": -9223372036854775808}`), &api.TopicValue{Topic: "services", Value: structpb.NewListValue(evilServices)},
		&api.Event{Kind: evil, Source: evil, Message: evil}, Failed{Version, evil}, topic(t, "memory", `"what is that"`),
		&api.UpgradeStatus{Running: evil, From: evil, To: evil, Phase: evil, Reason: evil, Operation: evil, WaitingFor: evil, Log: []string{evil}, Done: -5, Total: 1},
	} {
		s = s.Apply(Message{0, body})
	}
	s = withLog(press(s, "3"), 0).Apply(Message{0, LogLine{s.machines[0].services[0].Name, &api.LogLine{Text: evil}}})
	for _, s := range []State{s, s.Apply(Message{0, Failed{Logs, evil}}), s.Apply(Message{0, Disconnected{Reason: evil}})} {
		for _, key := range []string{"1", "2", "3", "4", "5", "?"} {
			shown := press(s, key).Draw()
			if i := strings.IndexFunc(shown, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("screen %s: the output has the unprintable text %q", key, shown[i:min(len(shown), i+20)])
			}
			if strings.Count(shown, "\n") != 29 {
				t.Errorf("screen %s: %d rows, want 30", key, strings.Count(shown, "\n")+1)
			}
		}
	}
	if !strings.Contains(press(s, "3").Draw(), "éé") {
		t.Error("the printable characters of the log are missing")
	}
}

// TestNothingInPlace checks that methods that derive a state from another state do not change the
// other state.
func TestNothingInPlace(t *testing.T) {
	first := withLog(press(sample(t), "3"), 30)
	shown := first.Draw()
	second := withLog(first, 3).Apply(Message{0, Disconnected{Reason: "gone"}})
	second = press(second, "j", "l", "4", "k", "n")
	if second.Draw() == shown || first.Draw() != shown {
		t.Errorf("the first state has changed, or the second one has not:\n%s", first.Draw())
	}
}

// TestWants checks that the dashboard requests the log of the selected service, but only while the
// screen with the log is shown. The screen shows no line of another log.
func TestWants(t *testing.T) {
	s := sample(t)
	for keys, want := range map[string]Log{
		"":            {},
		"2 j":         {},
		"2 j j enter": {0, "apid"},
		"3":           {0, "containerd"},
		"3 l":         {0, "orchestrator-api"},
		"3 l l l h":   {0, "orchestrator-api"},
		"3 h n p":     {0, "containerd"},
		"3 n":         {}, // the second machine has no service
		"3 4":         {},
		"3 p p p":     {0, "containerd"},
	} {
		if got := press(s, strings.Fields(keys)...).Wants(); got != want {
			t.Errorf("%q: %v, want %v", keys, got, want)
		}
	}
	s = withLog(press(s, "3"), 3)
	s = s.Apply(Message{0, LogLine{"apid", &api.LogLine{Text: "of another service"}}}).Apply(Message{1, LogLine{"containerd", &api.LogLine{Text: "of another machine"}}})
	if shown := s.Draw(); !strings.Contains(shown, "line 3") || strings.Contains(shown, "another") {
		t.Errorf("the log of another service or machine is on the screen:\n%s", shown)
	}
	if shown := press(s, "l", "h").Draw(); strings.Contains(shown, "line 3") {
		t.Errorf("the lines of the previously selected service are still shown:\n%s", shown)
	}
	if shown := s.Apply(Message{0, Started{Logs}}).Draw(); strings.Contains(shown, "line 3") {
		t.Errorf("a log that has started again still shows its former lines:\n%s", shown)
	}
}

// TestScroll checks that, after the user has scrolled a log, the visible lines stay in place while
// new lines arrive. The key G scrolls to the end of the log, and from then on the screen shows new
// lines.
func TestScroll(t *testing.T) {
	s := withLog(press(sample(t), "3"), 100)
	end := func(s State) string { return strings.Split(s.Draw(), "\n")[22] }
	if !strings.Contains(end(withLog(s, 101)), "line 101") {
		t.Errorf("the last row of the log is %q, want line 101", end(withLog(s, 101)))
	}
	held := press(s, "g")
	if top := strings.Split(held.Draw(), "\n")[3]; !strings.HasSuffix(top, "line 1") {
		t.Errorf("the first row of the log is %q, want line 1", top)
	}
	body := func(s State) string { return strings.Join(strings.Split(s.Draw(), "\n")[3:], "\n") }
	more := held
	for range 50 {
		more = more.Apply(Message{0, LogLine{"containerd", &api.LogLine{Text: "more"}}})
	}
	if body(more) != body(held) {
		t.Errorf("new lines have moved the rows of a scrolled log:\n%s", body(more))
	}
	if !strings.HasSuffix(end(press(more, "G")), "more") || press(more, "G").log.held {
		t.Errorf("the last row after the key G is %q, or the log is still scrolled", end(press(more, "G")))
	}
	for range 2 * keptLines {
		more = more.Apply(Message{0, LogLine{"containerd", &api.LogLine{Text: strings.Repeat("x", 2*maxLine)}}})
	}
	if len(more.log.kept) != keptLines || len(more.log.kept[0].text) > maxLine {
		t.Errorf("%d lines are retained, the first of %d bytes", len(more.log.kept), len(more.log.kept[0].text))
	}
	if rows := strings.Count(more.Draw(), "\n"); rows != 23 {
		t.Errorf("the screen has %d rows, want 24", rows+1)
	}
}

// TestBack checks that a lost connection removes the health and the topics of a machine, and that a
// reconnection replaces its events. It also checks the keys that end the dashboard.
func TestBack(t *testing.T) {
	s := sample(t).Apply(Message{0, Disconnected{Reason: "it reboots", Next: now}})
	if m := s.machines[0]; m.health != nil || m.system.CPUs != 0 || m.version == nil {
		t.Errorf("a disconnected machine has health or a topic, or no version: %v", m)
	}
	s = s.Apply(Message{0, Connected{}}).Apply(Message{0, Started{Events}}).Apply(Message{0, &api.Event{Message: "first of this start"}})
	if shown := press(s, "4").Draw(); strings.Contains(shown, "STATE") || !strings.Contains(shown, "first of this start") || strings.Contains(shown, "away") {
		t.Errorf("the screen shows former events, or the machine as away:\n%s", shown)
	}
	if !press(s, "q").Quits() || !press(s, "?", "ctrl+c").Quits() || s.Quits() {
		t.Error("the wrong keys end the dashboard")
	}
}

// TestSpan checks the text for a duration, which has the two largest units at most.
func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 3599 * time.Second: "59m", 3*time.Hour + 7*time.Minute: "3h07m",
		47 * time.Hour: "1d23h", 99*24*time.Hour + 23*time.Hour: "99d23h", 2400 * time.Hour: "100d",
	} {
		if got := span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

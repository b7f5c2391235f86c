package emulation

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Minor{
		"1.36": {1, 36}, "2.0": {2, 0}, "": {}, "1": {}, "v1.36": {}, "1.36.3": {}, "1.036": {}, "1.-1": {}, "1.36 ": {}, "1.99999": {},
	} {
		got, err := Parse(text)
		if got != want || (err == nil) != want.Known() {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for version, want := range map[string]Minor{
		"v1.36.3": {1, 36}, "1.37.2": {1, 37}, "v1.37": {1, 37}, "v1.37.0-rc.1": {1, 37}, "v1.37+orlop": {}, "": {}, "master": {}, "v01.2.3": {},
	} {
		if got := Of(version); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

// TestText checks that the stored form of a version can be parsed, and that other forms are errors.
func TestText(t *testing.T) {
	type stored struct {
		Kubernetes Minor `json:"kubernetes"`
	}
	for _, m := range []Minor{{}, {1, 36}} {
		text, err := json.Marshal(stored{m})
		var got stored
		if err != nil || json.Unmarshal(text, &got) != nil || got.Kubernetes != m {
			t.Errorf("%v: %s, %v", m, text, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"kubernetes":"latest"}`), &stored{}); err == nil || !strings.Contains(err.Error(), "expected a text such as 1.36") {
		t.Error(err)
	}
}

func TestInitial(t *testing.T) {
	old, own := Minor{1, 36}, Minor{1, 37}
	for name, test := range map[string]struct {
		recorded    []Minor
		local, want Minor
	}{
		"a new cluster":                          {want: own},
		"a cluster of the same version":          {[]Minor{own, own}, own, own},
		"another member has the old version":     {[]Minor{own, old}, own, old},
		"the first member of a cluster upgrades": {[]Minor{old, old, old}, old, old},
		"the record of the cluster is missing":   {nil, old, old},
		"an unknown member":                      {[]Minor{{}, own}, Minor{}, own},
		"a newer member":                         {[]Minor{{1, 38}, own}, own, own},
	} {
		if got := Initial(test.recorded, test.local, own); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestEmulated(t *testing.T) {
	for _, test := range []struct {
		level, own, want Minor
		err              string
	}{
		{Minor{1, 37}, Minor{1, 37}, Minor{}, ""},
		{Minor{}, Minor{1, 37}, Minor{}, ""},
		{Minor{1, 36}, Minor{1, 37}, Minor{1, 36}, ""},
		{Minor{1, 34}, Minor{1, 37}, Minor{1, 34}, ""},
		{Minor{1, 33}, Minor{1, 37}, Minor{}, "emulates at most 3 older minor versions"},
		{Minor{1, 38}, Minor{1, 37}, Minor{}, "the level of the cluster is 1.38, and this version has Kubernetes 1.37: upgrade this machine"},
	} {
		got, err := Emulated(test.level, test.own)
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("level %v with %v: %v, %v", test.level, test.own, got, err)
		}
	}
}

// TestDescribe checks the texts for a cluster of three machines.
func TestDescribe(t *testing.T) {
	old, own := Minor{1, 36}, Minor{1, 37}
	for _, test := range []struct {
		cluster Cluster
		want    string
	}{
		{Cluster{old, members(own, own, own), ""}, "level 1.36, finalize possible: `orlopctl upgrade finalize` raises it to 1.37, and ends the way back"},
		{Cluster{old, members(own, old, old), ""}, "level 1.36, finalize blocked because control-plane machines b, c run Kubernetes 1.36"},
		{Cluster{old, members(own, own, Minor{}), ""}, "level 1.36, finalize blocked because the version of control-plane machine c is unknown"},
		{Cluster{old, []Member{{"a", own, ""}, {"b", own, "connection refused"}}, ""}, "level 1.36, finalize blocked because control-plane machine b is away: connection refused"},
		{Cluster{old, members(own, own), "control-plane machine b is being upgraded"}, "level 1.36, finalize blocked because control-plane machine b is being upgraded"},
		{Cluster{own, members(own, own), ""}, "level 1.37"},
		{Cluster{own, members(own, own), "control-plane machine b reboots"}, "level 1.37"},
		{Cluster{own, members(own, Minor{1, 38}), ""}, "level 1.37"},
		{Cluster{Minor{}, members(own), ""}, "level unknown, finalize blocked because the level of the cluster is unknown"},
		{Cluster{old, nil, ""}, "level 1.36, finalize blocked because the members of etcd are unknown"},
	} {
		if got := test.cluster.Describe(own); got != test.want {
			t.Errorf("%+v:\n%s\n%s", test.cluster, got, test.want)
		}
	}
}

// TestRepeated checks that a repeated call succeeds while the machines restart at the new level,
// because the answer to the first call can be lost.
func TestRepeated(t *testing.T) {
	own := Minor{1, 37}
	away := Member{"b", own, "its API server is not ready: connection refused"}
	for _, c := range []Cluster{{own, []Member{{"a", own, ""}, away}, ""}, {own, members(own, own), "control-plane machine b starts at the new level"}} {
		if next, no := c.Next(); no != nil || next != own {
			t.Errorf("%+v: %v, %+v", c, next, no)
		}
	}
	// If the version of a member is unknown, the level cannot be raised.
	if _, no := (Cluster{own, members(own, Minor{}), ""}).Next(); no == nil {
		t.Error("the level is raised although the version of a member is unknown")
	}
}

// members returns machines a, b, … with versions.
func members(versions ...Minor) []Member {
	var all []Member
	for i, v := range versions {
		all = append(all, Member{Name: string(rune('a' + i)), Kubernetes: v})
	}
	return all
}

func TestCheckTarget(t *testing.T) {
	old, own, next := Minor{1, 36}, Minor{1, 37}, Minor{1, 38}
	for _, test := range []struct {
		level, target Minor
		shared        bool
		want          string
		forced        bool
	}{
		{old, old, true, "", false},
		{old, old, false, "", false},
		{own, old, true, "the level of the cluster is 1.37, and version 1.36 cannot read its data; the way back is a restore from before the level was raised (`orlopctl docs runbook`, \"Raise the level of the cluster\")", false},
		{own, old, false, "the level of the cluster is 1.37, and version 1.36 cannot read its data; restore the savepoint from before the upgrade with --force, which loses all writes since", true},
		{Minor{}, old, true, "the level of the cluster is unknown; try again when etcd answers (`orlopctl etcd members`)", true},
		{Minor{}, old, false, "", false},
		{own, next, true, "", false},
		{old, next, true, "the level of the cluster is still 1.36, and this machine runs Kubernetes 1.37; raise it first (`orlopctl upgrade finalize`)", true},
		{own, own, true, "", false},
		{Minor{}, own, true, "", false},
		{own, Minor{}, true, "", false},
	} {
		no, forced := CheckTarget(test.level, own, test.target, test.shared)
		got := ""
		if no != nil {
			got = no.Reason + "; " + no.Remedy
		}
		if got != test.want || forced != test.forced {
			t.Errorf("level %v, target %v: %q, %v", test.level, test.target, got, forced)
		}
	}
}

// TestProperties checks properties of the decisions on random clusters.
func TestProperties(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	version := func() Minor { return Minor{1, 35 + source.IntN(4)} }
	raised := 0
	for range 20_000 {
		c := Cluster{Level: version()}
		for i := range 1 + source.IntN(5) {
			m := Member{Name: fmt.Sprint(i), Kubernetes: version()}
			if source.IntN(20) == 0 {
				m.Kubernetes = Minor{}
			}
			if source.IntN(20) == 0 {
				m.Problem = "away"
			}
			c.Members = append(c.Members, m)
		}
		next, no := c.Next()
		if no != nil {
			if next.Known() || no.Reason == "" || no.Remedy == "" {
				t.Fatalf("%+v: %v, %+v", c, next, no)
			}
			continue
		}
		// The level never falls, and each member can serve the new level.
		if next.OlderThan(c.Level) {
			t.Fatalf("%+v: the level falls to %v", c, next)
		}
		for _, m := range c.Members {
			if next != c.Level && (m.Kubernetes.OlderThan(next) || m.Problem != "") || !m.Kubernetes.Known() {
				t.Fatalf("%+v: the level is raised to %v although a member cannot serve it", c, next)
			}
		}
		if next == c.Level {
			continue
		}
		raised++
		// Before the raise, each member could roll back to the level. After the raise, no member
		// can.
		for _, m := range c.Members {
			if no, _ := CheckTarget(c.Level, m.Kubernetes, c.Level, true); no != nil {
				t.Fatalf("%+v: no rollback is possible before the raise: %+v", c, no)
			}
			if no, forced := CheckTarget(next, m.Kubernetes, c.Level, true); no == nil || forced {
				t.Fatalf("%+v: a rollback is possible after the raise to level %v", c, next)
			}
		}
		// A second raise changes nothing.
		c.Level = next
		if again, no := c.Next(); no == nil && again != next {
			t.Fatalf("%+v: a second call raises the level to %v, after %v", c, again, next)
		}
	}
	if raised < 500 {
		t.Errorf("the level was raised in only %d clusters", raised)
	}
}

// TestHoldEtcd checks each row of the table, and that HoldEtcd returns Keep after its step is
// performed.
func TestHoldEtcd(t *testing.T) {
	for _, test := range []struct {
		wanted string
		etcd   Etcd
		want   Hold
	}{
		{"3.6", Etcd{Own: "3.7", Members: 3}, Enable},
		{"3.6", Etcd{Own: "3.7", Members: 3, Enabled: true, Target: "3.6"}, Keep},
		{"3.6", Etcd{Own: "3.7", Members: 3, Joining: true, Enabled: true, Target: "3.6"}, Cancel},
		{"3.6", Etcd{Own: "3.7", Members: 3, Joining: true}, Keep},
		{"3.6", Etcd{Own: "3.7", Members: 1}, Keep},
		{"3.6", Etcd{Own: "3.7", Members: 1, Enabled: true, Target: "3.6"}, Cancel},
		{"3.7", Etcd{Own: "3.7", Members: 3, Enabled: true, Target: "3.6"}, Cancel},
		{"3.7", Etcd{Own: "3.7", Members: 3}, Keep},
		{"", Etcd{Own: "3.7", Members: 3}, Keep},
		{"", Etcd{Own: "3.7", Members: 3, Enabled: true, Target: "3.6"}, Cancel},
		// Newer members keep etcd at this version by a downgrade.
		{"3.7", Etcd{Own: "3.7", Members: 3, Enabled: true, Target: "3.7"}, Keep},
	} {
		got := HoldEtcd(test.wanted, test.etcd)
		if test.etcd.Settled(test.wanted) {
			for _, later := range []Etcd{{Own: test.etcd.Own, Members: 1}, {Own: test.etcd.Own, Members: 3}, {Own: test.etcd.Own, Members: 3, Joining: true}} {
				if HoldEtcd(test.wanted, later) != Keep {
					t.Errorf("%q, %+v: settled, but %+v needs a step", test.wanted, test.etcd, later)
				}
			}
		} else if test.wanted == test.etcd.Own && !test.etcd.Enabled {
			t.Errorf("%q, %+v: not settled", test.wanted, test.etcd)
		}
		if got != test.want {
			t.Errorf("%q, %+v: %v, want %v", test.wanted, test.etcd, got, test.want)
		}
		after := test.etcd
		after.Enabled, after.Target = got == Enable || got == Keep && after.Enabled, test.wanted
		if got != Keep && HoldEtcd(test.wanted, after) != Keep {
			t.Errorf("%q, %+v: HoldEtcd returns a second step after the first was performed", test.wanted, test.etcd)
		}
	}
	if EtcdOf(Minor{1, 36}) != "3.6" || EtcdOf(Minor{1, 40}) != "" {
		t.Error("EtcdOf returns a wrong version of etcd")
	}
}

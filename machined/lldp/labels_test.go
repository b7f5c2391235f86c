package lldp

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestLabels checks the label that a rule derives from the neighbors. If the neighbors give no
// value, or different values, the label has its last value (the field last).
func TestLabels(t *testing.T) {
	leaf := func(link, name, port string) Neighbor {
		return Neighbor{Link: link, Chassis: "00:1c:73:01:02:03", Port: port, SystemName: name, VLAN: 100}
	}
	rule := func(from config.LLDPField, link, before string) config.LLDPLabel {
		return config.LLDPLabel{Key: "k", From: from, Link: link, Before: before}
	}
	one := []Neighbor{leaf("eth0", "leaf1.example", "Ethernet1/17")}
	two := []Neighbor{leaf("eth0", "rack7-leaf1", "a"), leaf("eth1", "rack7-leaf2", "b")}
	for _, c := range []struct {
		name      string
		rule      config.LLDPLabel
		neighbors []Neighbor
		last      string
		want      string // the value
		problem   string
	}{
		{"a name", rule(config.LLDPSystemName, "", ""), one, "", "leaf1.example", ""},
		{"a new value", rule(config.LLDPSystemName, "", ""), one, "old", "leaf1.example", ""},
		{"characters that a label cannot have", rule(config.LLDPPort, "", ""), one, "", "Ethernet1-17", ""},
		{"a MAC", rule(config.LLDPChassis, "", ""), one, "", "00-1c-73-01-02-03", ""},
		{"a VLAN", rule(config.LLDPVLAN, "", ""), one, "", "100", ""},
		{"a field that is missing", rule(config.LLDPPortDescription, "", ""), one, "", "", "no neighbor gives it a value"},
		{"a long text", rule(config.LLDPSystemName, "", ""), []Neighbor{leaf("eth0", strings.Repeat("a", 62)+"--b", "")}, "", strings.Repeat("a", 62), ""},
		{"no usable character", rule(config.LLDPSystemName, "", ""), []Neighbor{leaf("eth0", "?!", "")}, "", "", "no neighbor gives it a value"},
		{"the part before a separator", rule(config.LLDPSystemName, "", "-"), two, "", "rack7", ""},
		{"a separator that is missing", rule(config.LLDPSystemName, "", "/"), one, "x", "x", "no neighbor gives it a value; the last value stays: x"},
		{"the part after a separator", config.LLDPLabel{Key: "k", From: config.LLDPPort, After: "/"}, one, "", "17", ""},
		{"the part between two separators", config.LLDPLabel{Key: "k", From: config.LLDPSystemName, After: "leaf", Before: "."}, one, "", "1", ""},
		{"the first separator is missing", config.LLDPLabel{Key: "k", From: config.LLDPSystemName, After: "spine", Before: "."}, one, "", "", "no neighbor gives it a value"},
		{"a link", rule(config.LLDPSystemName, "eth1", ""), two, "", "rack7-leaf2", ""},
		{"a pattern of links", rule(config.LLDPSystemName, "eth[12]", ""), two, "", "rack7-leaf2", ""},
		{"two values", rule(config.LLDPSystemName, "", ""), two, "", "", "the neighbors give it different values: rack7-leaf1, rack7-leaf2"},
		{"two values after a single value", rule(config.LLDPSystemName, "", ""), two, "rack7-leaf1", "rack7-leaf1", "the last value stays: rack7-leaf1"},
		{"no neighbor", rule(config.LLDPSystemName, "", ""), nil, "", "", ""},
		{"no neighbor any more", rule(config.LLDPSystemName, "", ""), nil, "leaf1", "leaf1", ""},
	} {
		labels, problems := Labels([]config.LLDPLabel{c.rule}, c.neighbors, map[string]string{"k": c.last})
		if labels["k"] != c.want || (c.problem == "") != (len(problems) == 0) || !strings.Contains(strings.Join(problems, ""), c.problem) {
			t.Errorf("%s: %v, %q; want %q, %q", c.name, labels, problems, c.want, c.problem)
		}
	}
}

// TestTable checks the expiry of neighbors. A neighbor is added when its frame arrives, even if
// false neighbors have filled the table. Each link has its own limit of neighbors.
func TestTable(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n := func(port string, ttl int) Neighbor { return Neighbor{Chassis: "c", Port: port, TTL: ttl} }
	ports := func(table []Neighbor) (all []string) {
		for _, n := range table {
			all = append(all, n.Port)
		}
		return all
	}
	table := withNeighbor(withNeighbor(nil, n("b", 120), now), n("a", 10), now)
	if got := ports(table); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("two neighbors: %v", got)
	}
	if left, next := expire(table, now.Add(10*time.Second)); !slices.Equal(ports(left), []string{"b"}) || next != 110*time.Second {
		t.Errorf("after 10 s: %v, %v", left, next)
	}
	if left, next := expire(table, now.Add(2*time.Minute)); len(left) != 0 || next != 0 {
		t.Errorf("after 2 minutes: %v, %v", left, next)
	}
	if got := ports(withNeighbor(table, n("b", 0), now)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("after the last announcement of b (TTL 0): %v", got)
	}
	if got := withNeighbor(nil, n("a", 65535), now)[0].Expires; !got.Equal(now.Add(maxTTL)) {
		t.Errorf("the longest TTL: until %v", got)
	}
	for i := range 100 {
		table = withNeighbor(table, n(fmt.Sprint("false", i), 65535), now)
		if len(table) > maxNeighbors {
			t.Fatalf("%d neighbors", len(table))
		}
	}
	table = withNeighbor(table, n("b", 120), now)
	if got := ports(table); !slices.Contains(got, "b") {
		t.Errorf("after a flood: %v", got)
	}
	other := n("b", 120)
	other.Link = "eth1"
	if both := withNeighbor(table, other, now); len(both) != maxNeighbors+1 || both[maxNeighbors].Link != "eth1" {
		t.Errorf("after a frame of another link: %v", both)
	}
}

// TestStore checks that stored labels are read again. Without a file there are no labels, and
// without STATE, nothing is stored; neither is an error.
func TestStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state", "labels.json")
	if labels, err := load(file); err != nil || len(labels) != 0 {
		t.Errorf("no file: %v, %v", labels, err)
	}
	want := map[string]string{"example.com/rack": "7"}
	if err := save(file, want); err != nil {
		t.Fatal(err)
	}
	if got, err := load(file); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if err := save("", want); err != nil {
		t.Errorf("without STATE: %v", err)
	}
}

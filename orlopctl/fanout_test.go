package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestManners checks that each command in manners exists, and that streaming commands are marked as
// such.
func TestManners(t *testing.T) {
	for name := range manners {
		c, rest, err := new(tool).rootCommand().Find(strings.Fields(name))
		if err != nil || len(rest) > 0 || !c.Runnable() {
			t.Errorf("%s: there is no such command (%v)", name, err)
		}
	}
	for line, want := range map[string]manner{
		"logs etcd": atOnce, "logs etcd -f": following, "audit list --follow": following, "upgrade status": atOnce, "upgrade status --wait": following,
		"health": following, "upgrade": inTurn, "kubeconfig": notAtAll, "trust renew": notAtAll, "gen operator": notAtAll, "cluster destroy": notAtAll,
	} {
		c, flags, err := new(tool).rootCommand().Find(strings.Fields(line))
		if err == nil {
			err = c.ParseFlags(flags)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := mannerOf(c, 2); got != want || (err == nil) != (want != notAtAll) {
			t.Errorf("%s: %v, %v; want %v", line, got, err, want)
		}
	}
}

// TestMannersAsDocumented checks that a command whose help mentions --nodes supports it.
func TestMannersAsDocumented(t *testing.T) {
	spoken := 0
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		if strings.Contains(strings.ReplaceAll(c.Long, "\n", " "), "machines of --nodes") || strings.Contains(c.Example, " -n 10.") {
			spoken++
			if manners[nameOf(c)] == notAtAll {
				t.Errorf("%s: its help speaks of --nodes, with which it cannot be made", nameOf(c))
			}
		}
		for _, below := range c.Commands() {
			look(below)
		}
	}
	look(new(tool).rootCommand())
	if spoken < 3 {
		t.Errorf("only %d commands were looked at", spoken)
	}
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	l := &prefixed{to: &out, prefix: "m: "}
	for _, part := range []string{"a", "b\n\nc", "\nd\ne", ""} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("%q: %d, %v", part, n, err)
		}
	}
	if want := "m: ab\nm: \nm: c\nm: d\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	l.end()
	l.end()
	if want := "m: ab\nm: \nm: c\nm: d\nm: e\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/iostreams"
)

// TestFanoutModes checks that each command in fanoutModes exists, and that streaming commands are
// marked as such.
func TestFanoutModes(t *testing.T) {
	for name := range fanoutModes {
		c, rest, err := newTool(&iostreams.Streams{}).rootCommand().Find(strings.Fields(name))
		if err != nil || len(rest) > 0 || !c.Runnable() {
			t.Errorf("%s: there is no such command (%v)", name, err)
		}
	}
	for line, want := range map[string]fanoutMode{
		"logs etcd": parallel, "logs etcd -f": streaming, "audit list --follow": streaming, "upgrade status": parallel, "upgrade status --wait": streaming,
		"health": streaming, "upgrade": sequential, "kubeconfig": noFanout, "trust renew": noFanout, "gen operator": noFanout, "cluster destroy": noFanout,
	} {
		c, flags, err := newTool(&iostreams.Streams{}).rootCommand().Find(strings.Fields(line))
		if err == nil {
			err = c.ParseFlags(flags)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := fanoutModeOf(c, 2); got != want || (err == nil) != (want != noFanout) {
			t.Errorf("%s: %v, %v; want %v", line, got, err, want)
		}
	}
}

// TestFanoutModesAsDocumented checks that a command whose help mentions --nodes supports it.
func TestFanoutModesAsDocumented(t *testing.T) {
	spoken := 0
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		if strings.Contains(strings.ReplaceAll(c.Long, "\n", " "), "machines of --nodes") || strings.Contains(c.Example, " -n 10.") {
			spoken++
			if fanoutModes[nameOf(c)] == noFanout {
				t.Errorf("%s: its help speaks of --nodes, with which it cannot be made", nameOf(c))
			}
		}
		for _, below := range c.Commands() {
			look(below)
		}
	}
	look(newTool(&iostreams.Streams{}).rootCommand())
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

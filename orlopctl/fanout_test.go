package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
)

// TestFanoutOfCommands compares the fanout mode of each command that supports --nodes with
// testdata/fanout.txt.
func TestFanoutOfCommands(t *testing.T) {
	var out strings.Builder
	eachCommand(newTool(&iostreams.Streams{}).rootCommand(), func(c *cobra.Command) {
		mode, err := fanoutModeOf(c, 1)
		if (err == nil) != (mode != api.Fanout_FANOUT_NONE) {
			t.Errorf("%s: %v, %v", nameOf(c), mode, err)
		}
		if err == nil {
			fmt.Fprintf(&out, "%s: %s\n", nameOf(c), strings.ToLower(strings.TrimPrefix(mode.String(), "FANOUT_")))
		}
	})
	golden := filepath.Join("testdata", "fanout.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || out.String() != string(want) {
		t.Errorf("%s differs (%v); run: go test ./orlopctl -update; got:\n%s", golden, err, out.String())
	}
}

// TestFanoutOfFlags checks the fanout mode of some commands. With --follow or --wait, the mode of a
// command is streaming.
func TestFanoutOfFlags(t *testing.T) {
	for line, want := range map[string]api.Fanout{
		"logs etcd": api.Fanout_FANOUT_PARALLEL, "logs etcd -f": api.Fanout_FANOUT_STREAMING,
		"audit list --follow": api.Fanout_FANOUT_STREAMING,
		"upgrade status":      api.Fanout_FANOUT_PARALLEL, "upgrade status --wait": api.Fanout_FANOUT_STREAMING,
		"health": api.Fanout_FANOUT_STREAMING, "upgrade": api.Fanout_FANOUT_SEQUENTIAL,
		"kubeconfig": api.Fanout_FANOUT_NONE, "trust renew": api.Fanout_FANOUT_NONE,
		"gen operator": api.Fanout_FANOUT_NONE, "cluster destroy": api.Fanout_FANOUT_NONE,
	} {
		c, flags, err := newTool(&iostreams.Streams{}).rootCommand().Find(strings.Fields(line))
		if err == nil {
			err = c.ParseFlags(flags)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := fanoutModeOf(c, 2); got != want || (err == nil) != (want != api.Fanout_FANOUT_NONE) {
			t.Errorf("%s: %v, %v; want %v", line, got, err, want)
		}
	}
}

// eachCommand calls the function do for a command and for all its subcommands.
func eachCommand(c *cobra.Command, do func(*cobra.Command)) {
	do(c)
	for _, below := range c.Commands() {
		eachCommand(below, do)
	}
}

// TestFanoutModesAsDocumented checks that a command supports --nodes if its help mentions the flag.
func TestFanoutModesAsDocumented(t *testing.T) {
	mentions := 0
	eachCommand(newTool(&iostreams.Streams{}).rootCommand(), func(c *cobra.Command) {
		if strings.Contains(strings.ReplaceAll(c.Long, "\n", " "), "machines of --nodes") || strings.Contains(c.Example, " -n 10.") {
			mentions++
			if fanoutOf(c) == api.Fanout_FANOUT_NONE {
				t.Errorf("%s: its help mentions --nodes, which the command does not support", nameOf(c))
			}
		}
	})
	if mentions < 3 {
		t.Errorf("the help of only %d commands mentions --nodes, want at least 3", mentions)
	}
}

// TestLines checks that the writer puts its prefix before each line, also if a line is written in
// several parts. The last line, which has no line end, is written at the end.
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

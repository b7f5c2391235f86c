package main

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/orlopctl/iostreams"
)

// TestOtherCommands checks the hints for commands and topics that other tools have. This tool must
// not have a command of the same name, and each hint must name existing commands of this tool.
func TestOtherCommands(t *testing.T) {
	root := newTool(&iostreams.Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}).rootCommand()
	commands := regexp.MustCompile("`orlopctl ([^`]*)`")
	hints := map[string]string{}
	for word, hint := range otherCommands {
		if c, _, err := root.Find([]string{word}); err == nil && c != root {
			t.Errorf("%s has a hint, but is a command of this tool", word)
		}
		hints[word] = hint
	}
	for topic, hint := range otherTopics {
		hints["get "+topic] = hint
	}
	for word, hint := range hints {
		if !strings.Contains(hint, "`") && word != "conformance" {
			t.Errorf("%s: the hint %q names no command", word, hint)
		}
		for _, found := range commands.FindAllStringSubmatch(hint, -1) {
			words := strings.Fields(found[1])
			c, rest, err := root.Find(words)
			if err != nil || c == root || len(rest) > 0 && c.HasSubCommands() && !c.Runnable() {
				t.Errorf("%s: the hint names `orlopctl %s`, which does not exist", word, found[1])
			}
			if c.HasSubCommands() && len(rest) > 0 {
				t.Errorf("%s: the hint names a subcommand of `orlopctl %s` that does not exist: %q", word, c.CommandPath(), rest[0])
			}
		}
	}
}

// TestElsewhere checks that the function elsewhere finds, for an error message of cobra, the hint
// for the unknown command. There is no hint for a word that no other tool has as a command.
func TestElsewhere(t *testing.T) {
	for message, want := range map[string]string{
		`unknown command "bootstrap" for "orlopctl"`:                      "this step is not necessary",
		`unknown command "Disks" for "orlopctl"`:                          "orlopctl get disks",
		`unknown command "pods" for "orlopctl"`:                           "kubectl get pods",
		`unknown command "po/web" for "orlopctl"`:                         "kubectl get pods",
		`unknown command "deployments.apps" for "orlopctl"`:               "kubectl get deployments",
		`unknown command "ingress" for "orlopctl"`:                        "kubectl get ingresses",
		`unknown command "networkpolicy" for "orlopctl"`:                  "kubectl get networkpolicies",
		"unknown command \"edit\" for \"orlopctl\"\n\nDid you mean this?": "orlopctl edit-config",
		`unknown command "xyzzy" for "orlopctl"`:                          "",
		`unknown command "bootstrap" for "orlopctl nodes"`:                "",
		`unknown flag: --bootstrap`:                                       "",
	} {
		got := elsewhere(errors.New(message))
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
}

// TestProgress checks the lines about a transfer. Each line contains the number of transferred
// bytes, and the total if it is known. A terminal gets a line for each chunk, and any other output
// gets a line every 15 s at most.
func TestProgress(t *testing.T) {
	for _, c := range []struct {
		terminal bool
		total    int64
		want     string
	}{
		{true, 4 << 20, "\r\x1b[Ksent 1.0 MiB of 4.0 MiB (25%)\r\x1b[Ksent 2.0 MiB of 4.0 MiB (50%)\r\x1b[Ksent 3.0 MiB of 4.0 MiB (75%)\r\x1b[K"},
		{true, 0, "\r\x1b[Ksent 1.0 MiB\r\x1b[Ksent 2.0 MiB\r\x1b[Ksent 3.0 MiB\r\x1b[Ksent 4.0 MiB"},
		{false, 4 << 20, "sent 2.0 MiB of 4.0 MiB (50%)\nsent 4.0 MiB of 4.0 MiB (100%)\n"},
		{false, 0, "sent 2.0 MiB\nsent 4.0 MiB\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			progress := progressOn(&iostreams.Streams{Err: &out, Out: &out}, c.terminal, "sent", c.total)
			err := send(bytes.NewReader(make([]byte, 4<<20)), progress, func([]byte) error {
				time.Sleep(10 * time.Second)
				return nil
			})
			if got := out.String(); err != nil || got != c.want {
				t.Errorf("terminal %t, %d bytes: %q, %v; want %q", c.terminal, c.total, got, err, c.want)
			}
		})
	}
}

// TestWaiting checks the line about a slow operation. On a terminal, it replaces the previous line.
// For an operation that ends at once, there is no line.
func TestWaiting(t *testing.T) {
	var out bytes.Buffer
	ios := &iostreams.Streams{Err: &out, Out: &out}
	errorSoFar(ios, false, "the machine unpacks", 15*time.Second+time.Millisecond)
	errorSoFar(ios, true, "the machine unpacks", time.Minute)
	if got, want := out.String(), "the machine unpacks: 15s so far\n\r\x1b[Kthe machine unpacks: 1m0s so far"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	out.Reset()
	showWaiting(ios, "the machine unpacks")()
	if out.Len() != 0 {
		t.Errorf("an operation that ended at once has the line %q", out.String())
	}
}

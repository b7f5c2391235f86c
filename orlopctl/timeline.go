package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/vm"
)

// timeline prints what a machine reached and when, in seconds since power-on. What comes before the
// machine's API answers is read from the serial console; the rest is the machine's own topic
// "timeline", whose clock begins with init and is tied to ours by a line on the console.
type timeline struct {
	tool     *tool
	clock    vm.Clock // the machines'; all times below are of it
	poweron  time.Time
	last     time.Duration   // of the last line, since power-on
	told     map[string]bool // moments of the machine that were printed
	identity time.Time       // when the console showed the machine's identity
	began    time.Time       // when init began; zero as long as it is not known
	status   bool            // there is a passing line on the terminal
}

func newTimeline(t *tool, poweron time.Time, clock vm.Clock) *timeline {
	return &timeline{tool: t, clock: clock, poweron: clock.At(poweron), told: map[string]bool{}}
}

// add prints something that happened now.
func (l *timeline) add(what, detail string) { l.addAt(l.clock.Now(), what, detail) }

// addAt prints something with the time when it happened and how long it took since the line before.
func (l *timeline) addAt(at time.Time, what, detail string) {
	l.clear()
	since := max(at.Sub(l.poweron), 0)
	step := max(since-l.last, 0)
	l.last = max(since, l.last)
	l.tool.println(strings.TrimRight(fmt.Sprintf("%7.1fs  %+6.1fs  %-26s %s", since.Seconds(), step.Seconds(), what, detail), " "))
}

// wait shows on a terminal what is waited for, in a line that the next one replaces.
func (l *timeline) wait(what string) {
	width, ok := l.tool.terminal()
	if !ok || !l.tool.human() {
		return
	}
	l.clear()
	line := []rune(fmt.Sprintf("%7.1fs           … %s", l.clock.Now().Sub(l.poweron).Seconds(), what))
	l.tool.printf("%s", string(line[:min(len(line), width-1)]))
	l.status = true
}

// clear removes the passing line (ECMA-48: EL).
func (l *timeline) clear() {
	if l.status {
		l.tool.printf("\r\x1b[K")
		l.status = false
	}
}

const (
	consoleLook = 50 * time.Millisecond
	// bootLimit bounds the way from power-on to the machine's identity, on a slow computer.
	bootLimit = 5 * time.Minute
)

var identityLine = regexp.MustCompile(`orlop: machine identity (sha256:[0-9a-f]{64})`)

// readConsole follows the console until it shows the machine's identity, and returns that.
func (l *timeline) readConsole(ctx context.Context, path string) (string, error) {
	l.wait("the firmware starts")
	fingerprint, err := shownIdentity(ctx, path, func() {
		l.add("firmware", "")
		l.wait("the machine shows its identity")
	})
	if err == nil {
		l.identity = l.clock.Now()
	}
	return fingerprint, err
}

// shownIdentity is the identity that a machine shows on its console, for which it waits. begun is
// called when the console shows anything.
func shownIdentity(ctx context.Context, path string, begun func()) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("console: cannot read: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	tick := time.NewTicker(consoleLook)
	defer tick.Stop()
	var text bytes.Buffer
	for {
		before := text.Len()
		if _, err := io.Copy(&text, file); err != nil {
			return "", fmt.Errorf("console: cannot read: %w", err)
		}
		if before == 0 && text.Len() > 0 {
			begun()
		}
		if match := identityLine.FindSubmatch(text.Bytes()); match != nil {
			return string(match[1]), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", &exitError{code: exitUnhealthy, err: errors.New("console: the machine did not show its identity in time")}
		}
	}
}

// moment is an entry of the machine's topic "timeline".
type moment struct {
	what    string
	seconds float64 // since init began
}

// follow prints the moments that are new. A machine that does not answer now is asked again with
// the next report.
func (l *timeline) follow(ctx context.Context, c *client.Client) {
	answer, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "timeline"})
	if err != nil {
		return
	}
	var moments []moment
	for _, v := range answer.GetValue().GetListValue().GetValues() {
		fields := v.GetStructValue().GetFields()
		moments = append(moments, moment{what: fields["name"].GetStringValue(), seconds: fields["seconds"].GetNumberValue()})
	}
	if l.began.IsZero() {
		l.anchor(ctx, c, moments)
	}
	if l.began.IsZero() {
		return
	}
	for _, m := range moments {
		if !l.told[m.what] {
			l.told[m.what] = true
			if name, shown := label(m.what); shown {
				l.addAt(l.began.Add(time.Duration(m.seconds*float64(time.Second))), name, "")
			}
		}
	}
}

// anchor ties the machine's clock to ours by the identity, which it showed on the console and noted
// as a moment, and prints where the kernel and init began.
func (l *timeline) anchor(ctx context.Context, c *client.Client, moments []moment) {
	for _, m := range moments {
		if m.what == "identity" {
			l.began = l.identity.Add(-time.Duration(m.seconds * float64(time.Second)))
		}
	}
	if l.began.IsZero() {
		return
	}
	if before, ok := kernelTime(ctx, c); ok {
		l.addAt(l.began.Add(-before), "kernel", "")
	}
	l.addAt(l.began, "init", "")
}

// kernelTime is how long the kernel ran before it started init, by its own log.
func kernelTime(ctx context.Context, c *client.Client) (time.Duration, bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the rest of the log is not wanted
	stream, err := c.Log.Kernel(ctx, &api.KernelLogRequest{})
	if err != nil {
		return 0, false
	}
	var first time.Time
	for {
		line, err := stream.Recv()
		if err != nil {
			return 0, false
		}
		if first.IsZero() {
			first = line.Time.AsTime()
		}
		if strings.HasPrefix(line.Text, "Run /init as init process") {
			return line.Time.AsTime().Sub(first), true
		}
	}
}

// shortSteps are steps of the boot that take no time worth a line, and what other lines say
// already.
var shortSteps = map[string]bool{
	"release": true, "clock": true, "configuration": true, "time": true, "network": true, "api": true, "services": true, "apid/apid": true,
}

// label is how a moment is shown: "orchestrator-api/etcd" as "etcd".
func label(what string) (string, bool) {
	if shortSteps[what] {
		return "", false
	}
	if _, component, found := strings.Cut(what, "/"); found {
		return component, true
	}
	return what, true
}

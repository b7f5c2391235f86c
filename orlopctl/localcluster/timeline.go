package localcluster

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

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/vm"
)

// timeline prints the progress of a machine with times in seconds since power-on. Until the API of
// the machine answers, the times come from the serial console. Later they come from topic
// "timeline"; the clock of the topic starts with init. The machine shows its identity on the
// console and as an entry of the topic, so the identity relates the two clocks.
type timeline struct {
	ios      *iostreams.Streams
	clock    vm.Clock // clock of the machines, for all times below
	poweron  time.Time
	last     time.Duration   // time of the last line, since power-on
	told     map[string]bool // moments that are printed
	identity time.Time       // time at which the console showed the machine's identity
	began    time.Time       // start of init; zero while it is unknown
	status   bool            // a temporary line is on the terminal
}

func newTimeline(ios *iostreams.Streams, poweron time.Time, clock vm.Clock) *timeline {
	return &timeline{ios: ios, clock: clock, poweron: clock.At(poweron), told: map[string]bool{}}
}

// add prints an event with the current time.
func (l *timeline) add(what, detail string) { l.addAt(l.clock.Now(), what, detail) }

// addAt prints an event with its time, and with the time since the previous event.
func (l *timeline) addAt(at time.Time, what, detail string) {
	l.clear()
	since := max(at.Sub(l.poweron), 0)
	step := max(since-l.last, 0)
	l.last = max(since, l.last)
	l.ios.Println(strings.TrimRight(fmt.Sprintf("%7.1fs  %+6.1fs  %-26s %s", since.Seconds(), step.Seconds(), what, detail), " "))
}

// wait prints the reason for the present wait on a terminal. The next line replaces this line.
func (l *timeline) wait(what string) {
	width, ok := l.ios.Terminal()
	if !ok || !l.ios.Human() {
		return
	}
	l.clear()
	line := []rune(fmt.Sprintf("%7.1fs           … %s", l.clock.Now().Sub(l.poweron).Seconds(), what))
	l.ios.Printf("%s", string(line[:min(len(line), width-1)]))
	l.status = true
}

// clear removes the line of wait (ECMA-48: EL).
func (l *timeline) clear() {
	if l.status {
		l.ios.Printf("\r\x1b[K")
		l.status = false
	}
}

const (
	// consoleLook is the polling interval of the console.
	consoleLook = 50 * time.Millisecond
	// bootLimit bounds the time from power-on to the machine's identity, on a slow computer.
	bootLimit = 5 * time.Minute
)

var identityLine = regexp.MustCompile(`orlop: machine identity (sha256:[0-9a-f]{64})`)

// readConsole waits until the console shows the machine's identity, and returns the identity.
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

// shownIdentity waits until a machine's console shows its identity, and returns the identity. It
// calls begun when the console shows its first output.
func shownIdentity(ctx context.Context, path string, begun func()) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("console: cannot read: %w", err)
	}
	defer func() { _ = file.Close() }() // the file was only read
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
			return "", &exit.Error{Code: exit.Unhealthy, Err: errors.New("console: the machine did not show its identity in time")}
		}
	}
}

// moment is an entry of the machine's topic "timeline".
type moment struct {
	what    string
	seconds float64 // since init started
}

// follow prints the new moments. If the machine does not answer, follow prints nothing; a later
// call prints the moments.
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

// anchor relates the machine's clock to the local clock. It uses the identity, because the machine
// has shown it on the console and recorded it as a moment. anchor prints the start of the kernel
// and of init.
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

// kernelTime returns the time between the start of the kernel and the start of init, from the
// kernel log. It returns false if the log lacks the line of the start of init.
func kernelTime(ctx context.Context, c *client.Client) (time.Duration, bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the rest of the log is not needed
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

// shortSteps are the steps of the boot that have no line, because they are too short or another
// line includes them.
var shortSteps = map[string]bool{
	"release": true, "clock": true, "configuration": true, "time": true, "network": true, "api": true, "services": true, "apid/apid": true,
}

// label returns the name under which a moment is printed: "etcd" for "orchestrator-api/etcd". It
// returns false for a moment that is not printed.
func label(what string) (string, bool) {
	if shortSteps[what] {
		return "", false
	}
	if _, component, found := strings.Cut(what, "/"); found {
		return component, true
	}
	return what, true
}

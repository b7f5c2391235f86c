package standby

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest).
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *script {
		return &script{t: t, now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}
	}, scripttest.Commands[*script]{
		// host phase=Off for=rack twins=1: changes the host; its first twin appears now
		"host": (*script).set,
		// power off: the power switch reports off; power problem TEXT: it reports an error
		"power": (*script).power,
		// wait 10s: time passes
		"wait": (*script).wait,
		// decide: stores the operation, and prints the verdict
		"decide": (*script).decide,
	})
}

// script is the state of a script: a host.
type script struct {
	t    *testing.T
	now  time.Time
	host Host
}

func (s *script) set(args []string) string {
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "new":
			s.host = Host{}
		case "phase":
			s.host.Phase, s.host.Since = Phase(value), s.now
		case "for":
			s.host.For = value
		case "claimed":
			s.host.Claimed = value != "no"
		case "waiting":
			s.host.Waiting = value != "no"
		case "succeeded":
			s.host.Succeeded = true
		case "unconfirmed":
			s.host.Unconfirmed = true
		case "inuse":
			s.host.InUse = strings.ReplaceAll(value, "_", " ")
		case "seen":
			s.host.Seen = s.now
		case "access":
			s.host.Access = strings.ReplaceAll(value, "_", " ")
		case "twins", "others":
			n, err := strconv.Atoi(value)
			if err != nil {
				s.t.Fatal(err)
			}
			if key == "others" {
				s.host.Others = n
				continue
			}
			if s.host.Twins = n; n == 1 && s.host.Twin.IsZero() {
				s.host.Twin = s.now
			}
		default:
			s.t.Fatalf("host: unknown argument %s", a)
		}
	}
	return ""
}

func (s *script) power(args []string) string {
	if args[0] == "problem" {
		s.host.Reading.Problem = strings.Join(args[1:], " ")
		return ""
	}
	s.host.Reading = fence.Reading{Power: fence.Power(args[0]), At: s.now}
	return ""
}

func (s *script) wait(args []string) string {
	s.now = s.now.Add(scripttest.Duration(s.t, args[0]))
	return ""
}

func (s *script) decide([]string) string {
	v := Decide(s.now, s.host)
	if v.Operation != s.host.Operation && (v.Action == fence.TurnOff || v.Action == fence.TurnOn) {
		s.t.Fatalf("%+v acts before the phase is stored", v)
	}
	if v.Action != fence.Nothing && !s.host.Reads() {
		s.t.Fatalf("%+v needs a power switch that was not read", v)
	}
	s.host.Operation = v.Operation
	out := fmt.Sprintf("phase %q", v.Operation.Phase)
	if v.Operation.For != "" {
		out += " for " + v.Operation.For
	}
	if v.Operation.Unconfirmed {
		out += ", erasure not confirmed"
	}
	if v.Operation.OnTheWay(s.now) {
		out += ", on the way"
	}
	if v.Action != fence.Nothing {
		out += ", switch: " + string(v.Action)
	}
	if v.Equip {
		out += ", the twin gets the switch"
	}
	if v.Obsolete {
		out += ", obsolete"
	}
	if v.Reason != "" {
		out += "; " + v.Reason
	}
	if v.Message != "" {
		out += ": " + v.Message
	}
	return out + "\n"
}

package main

import (
	"fmt"
	"slices"
	"time"
)

// patience bounds the recovery of a machine, in its own time since the start of its kernel;
// attempts of a failing version come before and are not part of it.
const patience = 120 * time.Second

// promise holds the guarantees for a machine after a cut.
type promise struct {
	Versions      []string // one of these runs
	Identity      string   // "": not shown yet
	Configuration string   // "": not applied
	// it had acknowledged this configuration; otherwise it may have it or none
	Configured bool
	Upgraded   bool // an upgrade had started
}

// promised returns the guarantees of the recorded machine when its log had this length.
func (r *recording) promised(length int64) promise {
	p := promise{Versions: []string{r.Old}}
	if length >= r.Answered {
		p.Identity = r.Identity
	}
	if r.Applied > 0 && length > r.ApplyBegan {
		p.Configuration, p.Configured = r.Configuration, length >= r.Applied
	}
	if r.UpgradeBegan > 0 && length > r.UpgradeBegan {
		p.Upgraded = true
		if r.New != "" {
			p.Versions = append(p.Versions, r.New)
		}
	}
	return p
}

// acknowledged returns the objects that the cluster had acknowledged by then.
func (r *recording) acknowledged(length int64) (names []string) {
	for _, o := range r.Writes {
		if o.At <= length {
			names = append(names, o.Name)
		}
	}
	return names
}

// seen is the machine's state at its first answer.
type seen struct {
	Version       string
	Phase         string // of the last upgrade
	Identity      string
	Configuration string
	Storage       string // why there is no storage
	Uptime        time.Duration
}

// phases are the valid phases of a machine that runs the old version (false) or the new version
// (true), after the start of an upgrade. An old version that reports an upgrade in progress would
// reject another upgrade.
var phases = map[bool][]string{
	false: {"", "failed", "rolled back"},
	true:  {"trial", "committed"},
}

// judge lists the violations of the promise.
func (p promise) judge(s seen) (wrong []string) {
	say := func(format string, values ...any) { wrong = append(wrong, fmt.Sprintf(format, values...)) }
	i := slices.Index(p.Versions, s.Version)
	if i < 0 {
		say("version %s runs, expected one of %q", s.Version, p.Versions)
	}
	switch allowed := phases[i > 0]; {
	case !p.Upgraded && s.Phase != "":
		say("the upgrade is %q, and none was asked for", s.Phase)
	case p.Upgraded && !slices.Contains(allowed, s.Phase):
		say("version %s runs, and the upgrade is %q, expected one of %q", s.Version, s.Phase, allowed)
	}
	if p.Identity != "" && s.Identity != p.Identity {
		say("the machine has another identity: %s, was %s", s.Identity, p.Identity)
	}
	if s.Configuration != p.Configuration && (p.Configured || s.Configuration != "") {
		say("the configuration is not the one that was applied:\n%s", s.Configuration)
	}
	if s.Storage != "" {
		say("no storage: %s", s.Storage)
	}
	if s.Uptime > patience {
		say("the first answer came after %.0f s", s.Uptime.Seconds())
	}
	return wrong
}

package main

import (
	"fmt"
	"slices"
	"time"
)

// patience is the limit for the recovery of a machine, in its own time since the start of its
// kernel. If a failing version boots first, the time of its attempts is not included.
const patience = 120 * time.Second

// promise holds the guarantees for the state of a machine after a cut.
type promise struct {
	Versions      []string // the machine must run one of these versions
	Identity      string   // empty: the machine had not shown its identity
	Configuration string   // empty: no configuration was applied
	// Configured means that the machine had acknowledged the configuration. If it is false, the
	// machine may have this configuration or none.
	Configured bool
	Upgraded   bool // whether an upgrade had started
}

// promised returns the guarantees for a cut of the recorded machine at this length of the log.
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

// acknowledged returns the names of the objects that the cluster had acknowledged at this length of
// the log.
func (r *recording) acknowledged(length int64) (names []string) {
	for _, o := range r.Writes {
		if o.At <= length {
			names = append(names, o.Name)
		}
	}
	return names
}

// seen is the state of a machine at its first answer.
type seen struct {
	Version       string
	Phase         string // of the last upgrade
	Identity      string
	Configuration string
	Storage       string // problem of the storage; empty: none
	Uptime        time.Duration
}

// phases are the valid phases of the last upgrade. The key is true for a machine that runs the new
// version, and false for the old version. A machine that runs the old version must not report an
// upgrade in progress, because it would reject the next upgrade.
var phases = map[bool][]string{
	false: {"", "failed", "rolled back"},
	true:  {"trial", "committed"},
}

// judge returns the violations of the promise by the state s.
func (p promise) judge(s seen) (wrong []string) {
	say := func(format string, values ...any) { wrong = append(wrong, fmt.Sprintf(format, values...)) }
	i := slices.Index(p.Versions, s.Version)
	if i < 0 {
		say("version %s runs, expected one of %q", s.Version, p.Versions)
	}
	switch allowed := phases[i > 0]; {
	case !p.Upgraded && s.Phase != "":
		say("the upgrade is %q, but no upgrade was started", s.Phase)
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

// Package slot is the whole decision about the two systems on a disk: which one runs next, when a
// new one is good, when the machine goes back, and what is remembered of it. It is pure: no clock,
// no disk, no network.
//
// Three things are stored, and each alone may be lost or old after a power cut:
//
//   - the entries, which are the names of files in the ESP; the boot loader counts tries there
//     (Entry)
//   - the record of the last upgrade, on STATE (Record)
//   - the two root partitions; a boot image finds its root by the root's hash, or not at all
//     (docs/decisions/0002)
//
// The entries alone decide what is started, so that a machine whose STATE is gone still goes back.
// The record only says why.
package slot

import (
	"fmt"
	"slices"
	"time"
)

// Phase is how far an upgrade has come.
type Phase string

// The phases.
const (
	// the new version comes, or is written into the other slot; the entry does not exist yet
	Writing    Phase = "writing"
	Written    Phase = "written"     // the entry exists, and the next start is the first try
	Trial      Phase = "trial"       // the new version has come as far as its first process
	Committed  Phase = "committed"   // it held its gate
	RolledBack Phase = "rolled back" // it did not; the machine is on the old version
	Failed     Phase = "failed"      // it was never started
)

// Done tells that nothing more happens by itself.
func (p Phase) Done() bool { return p == "" || p == Committed || p == RolledBack || p == Failed }

// Record is what a machine remembers of its last upgrade.
type Record struct {
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`
	Phase   Phase     `json:"phase,omitempty"`
	Tries   int       `json:"tries,omitempty"` // of the new version, as far as they are known
	Reason  string    `json:"reason,omitempty"`
	Started time.Time `json:"began,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	Log     []string  `json:"log,omitempty"` // the end of the log of the boot that failed
	// NetworkReached: the old version reached its gateway, so the new one has to.
	NetworkReached bool `json:"reached,omitempty"`
}

// Undecided is an error while an upgrade has not come to its end.
func (r Record) Undecided() error {
	if r.Phase.Done() {
		return nil
	}
	return fmt.Errorf("the upgrade from %s to %s is %s; wait until it is committed or rolled back", r.From, r.To, r.Phase)
}

// BeingReplaced tells that the version running has handed over to another one, of which it is not known
// yet what becomes of it.
func (r Record) BeingReplaced(running string) bool {
	return (r.Phase == Written || r.Phase == Trial) && r.From == running
}

// Event is what can happen.
type Event interface{ event() }

type (
	// Started: somebody asks for an upgrade.
	Started struct {
		To      string
		At      time.Time
		Reached bool // this version reaches its gateway
		Epoch   int  // of that version
		Floor   int  // the highest epoch of a version that was committed on this machine
	}
	// WriteFailed: the new version is not on the disk.
	WriteFailed struct {
		Reason string
		At     time.Time
	}
	// EntryWritten: the new version is on the disk and the loader knows it.
	EntryWritten struct{}
	// Booted: a system has come up. Entries is what is in the ESP.
	Booted struct {
		Entries []Entry
		At      time.Time
		Log     []string // what a version on trial has left behind of its log
	}
	// ChecksPassed: everything that a good system must do has been seen.
	ChecksPassed struct{ At time.Time }
	// ChecksFailed: it has not, until the deadline.
	ChecksFailed struct {
		Reason string
		Log    []string
	}
	// RollbackRequested: an operator wants the other version.
	RollbackRequested struct {
		Entries []Entry
		Reason  string
		At      time.Time
		Epochs  map[string]int // of the versions; 0 for one that does not say it
		Floor   int            // as in Began
	}
)

func (Started) event()           {}
func (WriteFailed) event()       {}
func (EntryWritten) event()      {}
func (Booted) event()            {}
func (ChecksPassed) event()      {}
func (ChecksFailed) event()      {}
func (RollbackRequested) event() {}

// Action is what is to be done, in order, after the new record has been stored;
// RestoreConfiguration before that, because it can be done again.
type Action interface{ action() }

type (
	// Watch: begin to watch the gate.
	Watch struct{}
	// Rename: give the entry of this version this name.
	Rename struct{ To Entry }
	// RestoreConfiguration: the configuration that a version was good with is in force again.
	RestoreConfiguration struct{ Version string }
	// Reboot: go down and start what the loader finds.
	Reboot struct{ Why string }
)

func (Watch) action()                {}
func (Rename) action()               {}
func (RestoreConfiguration) action() {}
func (Reboot) action()               {}

// Step is what an event means for the machine that runs the version running. An error says why the
// event is refused; nothing has changed then.
//
//	record                   event         condition                  new record    actions
//	done                     Began         newer, epoch not below     writing       -
//	                                       the floor
//	writing                  Began         (the last try was cut)     writing       -
//	writing                  WriteFailed                              failed        -
//	writing                  EntryWritten                             written       Reboot
//	any                      Booted        own entry is on trial      trial         Watch
//	written, trial           Booted        running is To, no entry    trial         Watch (the ESP is damaged)
//	written, trial           Booted        running is To, own good    committed     - (cut between rename and record)
//	written, trial           Booted        running is From, To failed rolled back   RestoreConfiguration
//	trial                    Booted        running is From, no To     rolled back   RestoreConfiguration (the firmware has lost it)
//	written, writing         Booted        running is From, no To     failed        -
//	written, trial           Booted        running is From, tries     as it was     - (somebody chose the old one)
//	trial                    ChecksPassed                                 committed     Rename to good
//	trial                    ChecksFailed                               trial+reason  Rename to failed, Reboot
//	done                     RollbackRequested     another entry, not failed, trial+reason  Rename own to failed, Reboot
//	                                       epoch not below the floor
//
// The floor holds for what somebody asks for. A version on trial that does not hold its gate is
// left whatever the epoch of the one before: the floor rises when a version is committed, and not
// earlier.
func Step(running string, r Record, e Event) (Record, []Action, error) {
	switch e := e.(type) {
	case Started:
		if r.Phase != Writing {
			if err := r.Undecided(); err != nil {
				return r, nil, err
			}
		}
		switch c := Compare(e.To, running); {
		case c == 0:
			return r, nil, fmt.Errorf("version %s is running already", running)
		case c < 0:
			return r, nil, fmt.Errorf("version %s is older than %s, which is running; `orlopctl rollback` goes back to the version before", e.To, running)
		}
		if e.Epoch < e.Floor {
			return r, nil, below(e.To, e.Epoch, e.Floor)
		}
		return Record{From: running, To: e.To, Phase: Writing, Started: e.At, NetworkReached: e.Reached}, nil, nil
	case WriteFailed:
		if r.Phase != Writing {
			return r, nil, nil
		}
		r.Phase, r.Reason, r.Ended = Failed, e.Reason, e.At
		return r, nil, nil
	case EntryWritten:
		r.Phase = Written
		return r, []Action{Reboot{Why: fmt.Sprintf("upgrade from %s to %s", r.From, r.To)}}, nil
	case Booted:
		r, actions := booted(running, r, e)
		return r, actions, nil
	case ChecksPassed:
		if r.Phase != Trial || r.To != running {
			return r, nil, nil
		}
		r.Phase, r.Reason, r.Ended = Committed, "", e.At
		return r, []Action{Rename{To: Entry{Version: running}}}, nil
	case ChecksFailed:
		if r.Phase != Trial || r.To != running {
			return r, nil, nil
		}
		r.Reason, r.Log = e.Reason, e.Log
		return r, []Action{Rename{To: Entry{Version: running, Trial: true, Done: max(r.Tries, 1)}}, Reboot{Why: e.Reason}}, nil
	case RollbackRequested:
		if err := r.Undecided(); err != nil {
			return r, nil, err
		}
		others := slices.DeleteFunc(slices.Clone(e.Entries), func(o Entry) bool { return o.Version == running || o.Failed() })
		other, ok := First(others)
		if !ok {
			return r, nil, fmt.Errorf("there is no other version to go back to")
		}
		if epoch := e.Epochs[other.Version]; epoch < e.Floor {
			return r, nil, below(other.Version, epoch, e.Floor)
		}
		r = Record{From: other.Version, To: running, Phase: Trial, Reason: e.Reason, Started: e.At}
		return r, []Action{Rename{To: Entry{Version: running, Trial: true, Done: 1}}, Reboot{Why: e.Reason}}, nil
	}
	return r, nil, fmt.Errorf("slot: unknown event %T", e)
}

// below is why a version is refused whose epoch is lower than one that was committed.
func below(version string, epoch, floor int) error {
	return fmt.Errorf("version %s has epoch %d, and one with epoch %d was committed on this machine: what was mended in between would be open again; take a version with epoch %[3]d or higher", version, epoch, floor)
}

func booted(running string, r Record, e Booted) (Record, []Action) {
	entry := func(version string) (Entry, bool) {
		i := slices.IndexFunc(e.Entries, func(o Entry) bool { return o.Version == version })
		if i < 0 {
			return Entry{}, false
		}
		return e.Entries[i], true
	}
	own, there := entry(running)
	if there && own.Trial || !there && running == r.To && !r.Phase.Done() {
		if r.To != running { // the record is lost; the entry is what counts
			r = Record{To: running, Started: e.At}
		}
		r.Phase, r.Tries, r.Reason = Trial, max(own.Done, 1), ""
		return r, []Action{Watch{}}
	}
	if r.Phase.Done() {
		return r, nil
	}
	if running == r.To {
		r.Phase, r.Ended = Committed, e.At
		return r, nil
	}
	other, there := entry(r.To)
	switch {
	case !there && r.Phase == Trial:
		if r.Reason == "" {
			r.Reason = fmt.Sprintf("the power was cut on trial, and the firmware's entry of version %s is gone", r.To)
		}
	case !there:
		r.Phase, r.Ended = Failed, e.At
		if r.Reason == "" {
			r.Reason = "it was cut short before the new version was on the disk; nothing has changed"
		}
		return r, nil
	case !other.Failed(): // somebody chose the old one
		return r, nil
	}
	r.Tries = max(r.Tries, other.Done)
	if r.Reason == "" {
		r.Reason = fmt.Sprintf("version %s did not come up in %d tries", r.To, other.Done)
	}
	if len(r.Log) == 0 {
		r.Log = e.Log
	}
	r.Phase, r.Ended = RolledBack, e.At
	return r, []Action{RestoreConfiguration{Version: running}}
}

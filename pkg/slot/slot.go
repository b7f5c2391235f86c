// Package slot makes the decisions about the two versions of the system on a disk: which version
// boots next, when the machine commits a new version, when it rolls back, and how the record of the
// upgrade changes. The package is pure: it uses no clock, no disk and no network.
//
// The machine stores three pieces of state. After a power cut, each of them can be lost or
// outdated, while the others are not:
//
//   - The entries (Entry). Each version has a UKI in the ESP: an EFI file with the kernel, the
//     initramfs and the command line. The boot loader counts the tries of a new version, which are
//     its boots, in the name of the file.
//   - The record of the last upgrade, on the STATE partition (Record).
//   - The two root partitions. The command line of an entry has the root hash of its version, and
//     the entry boots only with the partition that has this hash (docs/decisions/0002).
//
// Only the entries decide which version boots. So a machine without its STATE partition still rolls
// back. The record stores the progress of an upgrade and the reason of a rollback.
package slot

import (
	"fmt"
	"slices"
	"time"
)

// Phase is the progress of an upgrade.
type Phase string

// The phases of an upgrade.
const (
	// the machine receives the new version, or writes it into the other slot; the new version has
	// no entry yet
	Writing    Phase = "writing"
	Written    Phase = "written"     // the entry exists; the next boot is the first try
	Trial      Phase = "trial"       // the new version has booted at least once
	Committed  Phase = "committed"   // the upgrade probes have passed
	RolledBack Phase = "rolled back" // the new version failed; the old version runs
	Failed     Phase = "failed"      // the new version has never booted
)

// Done reports whether the upgrade has ended, or there was none.
func (p Phase) Done() bool { return p == "" || p == Committed || p == RolledBack || p == Failed }

// Record is the record of the last upgrade. Its fields are a stored format.
type Record struct {
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`
	Phase   Phase     `json:"phase,omitempty"`
	Tries   int       `json:"tries,omitempty"` // recorded boots of the new version
	Reason  string    `json:"reason,omitempty"`
	Started time.Time `json:"began,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	Log     []string  `json:"log,omitempty"` // last log lines of the failed boot
	// NetworkReached reports whether the old version reached its gateway. If it did, the new
	// version must reach the gateway, too.
	NetworkReached bool `json:"reached,omitempty"`
}

// Undecided returns an error if an upgrade is in progress, and nil otherwise.
func (r Record) Undecided() error {
	if r.Phase.Done() {
		return nil
	}
	return fmt.Errorf("the upgrade from %s to %s is %s; wait until it is committed or rolled back", r.From, r.To, r.Phase)
}

// BeingReplaced reports whether the machine is upgrading from the running version, and the new
// version is on the disk, but neither committed nor rolled back.
func (r Record) BeingReplaced(running string) bool {
	return (r.Phase == Written || r.Phase == Trial) && r.From == running
}

// Event is an input of Step: the cause of a step.
type Event interface{ event() }

type (
	// Started: a client starts an upgrade.
	Started struct {
		To      string
		At      time.Time
		Reached bool // whether the running version reaches its gateway
		// Epoch is the release epoch of To. A release increases its epoch when it fixes a
		// vulnerability of earlier versions (docs/decisions/0057).
		Epoch int
		Floor int // highest epoch of a version committed on this machine
	}
	// WriteFailed: the machine could not write the new version to the disk.
	WriteFailed struct {
		Reason string
		At     time.Time
	}
	// EntryWritten: the new version and its boot entry are on the disk.
	EntryWritten struct{}
	// Booted: the running version has booted. Entries are all boot entries in the ESP.
	Booted struct {
		Entries []Entry
		At      time.Time
		Log     []string // last log lines of the version on trial that ran before this boot
	}
	// ChecksPassed: all upgrade probes have passed.
	ChecksPassed struct{ At time.Time }
	// ChecksFailed: an upgrade probe did not pass before the deadline.
	ChecksFailed struct {
		Reason string
		Log    []string
	}
	// RollbackRequested: an operator requests a rollback to the other version.
	RollbackRequested struct {
		Entries []Entry
		To      string // requested version; empty for any
		Reason  string
		At      time.Time
		Epochs  map[string]int // release epoch of each version; 0 if unknown
		Floor   int            // see Started.Floor
	}
)

func (Started) event()           {}
func (WriteFailed) event()       {}
func (EntryWritten) event()      {}
func (Booted) event()            {}
func (ChecksPassed) event()      {}
func (ChecksFailed) event()      {}
func (RollbackRequested) event() {}

// Action is an output of Step. The caller stores the new record, and then performs the actions in
// order. RestoreConfiguration is an exception: the caller performs it before it stores the record.
// After a power cut between both, the old record leads to the same action again. In the other
// order, the power cut would lose the action.
type Action interface{ action() }

type (
	// Watch: start the upgrade probes of the running version.
	Watch struct{}
	// Rename: rename the entry of the version To.Version to the file name To.Name().
	Rename struct{ To Entry }
	// RestoreConfiguration: activate the configuration with which Version was committed.
	RestoreConfiguration struct{ Version string }
	// Reboot: shut down, and let the boot loader select the next version.
	Reboot struct{ Why string }
)

func (Watch) action()                {}
func (Rename) action()               {}
func (RestoreConfiguration) action() {}
func (Reboot) action()               {}

// Step returns the new record and the actions for an event. running is the version that runs now.
// An error says why the event is rejected; the record is unchanged then.
//
// In the table, From and To are fields of the record. The own entry is the entry of the running
// version. An entry without a try counter is good. The own entry is on trial if it has a try
// counter, even if no try remains. Any other entry has failed if it has a try counter and no try
// remains. Done stands for the phases with a true Phase.Done, and open for the phases writing,
// written and trial. "trial+reason" is the phase trial with a reason. The usual cause of a row is
// in parentheses.
//
//	record            event         condition                 new record    actions
//	done              Started       newer, epoch not below    writing       -
//	                                the floor
//	writing           Started       (the last transfer was    writing       -
//	                                interrupted)
//	writing           WriteFailed                             failed        -
//	writing           EntryWritten                            written       Reboot
//	any               Booted        own entry is on trial     trial         Watch
//	open              Booted        running is To, no entry   trial         Watch
//	                                (the ESP is damaged)
//	open              Booted        running is To, own entry  committed     -
//	                                is good (a power cut
//	                                between rename and
//	                                record)
//	open              Booted        running is From,          rolled back   RestoreConfiguration
//	                                the entry of To failed
//	trial             Booted        running is From, no       rolled back   RestoreConfiguration
//	                                entry of To (a power cut
//	                                while the loader renamed
//	                                it: docs/decisions/0081)
//	written, writing  Booted        running is From, no       failed        -
//	                                entry of To
//	open              Booted        running is From, To has   unchanged     -
//	                                tries left (the operator
//	                                chose the old version)
//	trial             ChecksPassed                            committed     Rename to good
//	trial             ChecksFailed                            trial+reason  Rename to failed,
//	                                                                        Reboot
//	done              Rollback-     another entry, not        trial+reason  Rename own entry to
//	                  Requested     failed, with the wanted                 failed, Reboot
//	                                version, epoch not below
//	                                the floor
//
// A requested rollback gets a record as if the running version had failed its trial: To is the
// running version, and From is the version to which the machine returns. So the next boot, of
// version From, completes the rollback like an automatic rollback.
//
// The floor is the highest epoch of a committed version. It limits the requests of operators. It
// does not limit the automatic rollback of a version on trial: this version has not raised the
// floor, because it was not committed.
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
			return r, nil, fmt.Errorf("version %s is older than %s, which is running; `orlopctl rollback` returns to the previous version", e.To, running)
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
		if r.Phase != Writing {
			return r, nil, nil
		}
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
		return r, []Action{Rename{To: failedEntry(running, max(r.Tries, 1))}, Reboot{Why: e.Reason}}, nil
	case RollbackRequested:
		if err := r.Undecided(); err != nil {
			return r, nil, err
		}
		others := slices.DeleteFunc(slices.Clone(e.Entries), func(o Entry) bool { return o.Version == running || o.Failed() })
		other, ok := First(others)
		if !ok {
			return r, nil, fmt.Errorf("there is no other version for a rollback")
		}
		if e.To != "" && e.To != other.Version {
			return r, nil, fmt.Errorf("version %s is wanted, and the other slot has version %s; an older version that is not in the other slot needs a new installation", e.To, other.Version)
		}
		if epoch := e.Epochs[other.Version]; epoch < e.Floor {
			return r, nil, below(other.Version, epoch, e.Floor)
		}
		// the record is as if the running version were on trial, and had failed
		r = Record{From: other.Version, To: running, Phase: Trial, Reason: e.Reason, Started: e.At}
		return r, []Action{Rename{To: failedEntry(running, 1)}, Reboot{Why: e.Reason}}, nil
	}
	return r, nil, fmt.Errorf("slot: unknown event %T", e)
}

// failedEntry returns the entry of a version that has used some tries and has no remaining try.
func failedEntry(version string, used int) Entry {
	return Entry{Version: version, Trial: true, Left: 0, Tries: used}
}

// below returns the error for a version whose epoch is below the floor.
func below(version string, epoch, floor int) error {
	return fmt.Errorf("version %s has epoch %d, and one with epoch %d was committed on this machine: fixed vulnerabilities would return; use a version with epoch %[3]d or higher", version, epoch, floor)
}

// booted is Step for the event Booted. It never fails.
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
		if r.To != running { // the record is lost, so the entry decides
			r = Record{To: running, Started: e.At}
		}
		r.Phase, r.Tries, r.Reason = Trial, max(own.Tries, 1), ""
		return r, []Action{Watch{}}
	}
	if r.Phase.Done() {
		return r, nil
	}
	if running == r.To { // its entry is good
		r.Phase, r.Ended = Committed, e.At
		return r, nil
	}
	other, there := entry(r.To)
	switch {
	// a power cut while the boot loader renamed the entry: the code after the switch rolls back
	case !there && r.Phase == Trial:
		if r.Reason == "" {
			r.Reason = fmt.Sprintf("the power was cut during the trial, and the boot entry of version %s is missing", r.To)
		}
	case !there:
		r.Phase, r.Ended = Failed, e.At
		if r.Reason == "" {
			r.Reason = "the upgrade was interrupted before the new version was on the disk; nothing has changed"
		}
		return r, nil
	case !other.Failed(): // the operator has selected the old version in the boot loader
		return r, nil
	}
	r.Tries = max(r.Tries, other.Tries)
	if r.Reason == "" {
		r.Reason = fmt.Sprintf("version %s did not boot in %d tries", r.To, other.Tries)
	}
	if len(r.Log) == 0 {
		r.Log = e.Log
	}
	r.Phase, r.Ended = RolledBack, e.At
	return r, []Action{RestoreConfiguration{Version: running}}
}

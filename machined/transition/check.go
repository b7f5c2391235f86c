package transition

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// Refuse returns the error for a configuration that is rejected for a reason other than a Problem.
func Refuse(err error) error { return fmt.Errorf(config.Refused+" %w", err) }

// RefuseReboot adds the remedies of the apply command to err, if the cluster does not permit the
// reboot that a configuration needs. err is the result of the request for permission. RefuseReboot
// returns all other errors, and nil, unchanged.
func RefuseReboot(err error) error {
	if no := (*disruption.Refusal)(nil); errors.As(err, &no) {
		err = Refuse(fmt.Errorf("it needs a reboot: %s; %s, or stage it (--mode staged, with --no-trial if it can cut you off) and reboot with --force", no.Reason, no.Remedy))
	}
	return err
}

// Problem is a reason why a configuration cannot become active.
type Problem struct {
	// Field is the path of the field, for example "Cluster.spec.pki.etcd". It is empty if no single
	// field is the reason.
	Field  string
	Reason string // the error text, without the field
	Hint   string // how the operator can fix the problem; may be empty
}

// split converts a line "Field: reason" to a Problem with a hint.
func split(line, hint string) Problem {
	if field, reason, ok := strings.Cut(line, ": "); ok {
		return Problem{Field: field, Reason: reason, Hint: hint}
	}
	return Problem{Reason: line, Hint: hint}
}

// String returns the problem without its hint.
func (p Problem) String() string {
	if p.Field == "" {
		return p.Reason
	}
	return p.Field + ": " + p.Reason
}

// Problems are the problems of a change; nil if the change is permitted. Use Err to convert them to
// an error.
type Problems []Problem

// Error returns all problems on one line. If consecutive problems have the same hint, the line has
// the hint once, after the last of these problems.
func (p Problems) Error() string {
	var parts []string
	for i, one := range p {
		parts = append(parts, one.String())
		if one.Hint != "" && (i+1 == len(p) || p[i+1].Hint != one.Hint) {
			parts = append(parts, one.Hint)
		}
	}
	return config.Refused + " " + strings.Join(parts, "; ")
}

// Err returns p as an error. It returns nil if there are no problems.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// problem returns Problems with a single problem.
func problem(field, reason, hint string) Problems {
	return Problems{{Field: field, Reason: reason, Hint: hint}}
}

// Facts are the inputs of Check besides the two configurations.
type Facts struct {
	Request *api.ApplyRequest
	Trial   Trial     // result of PlanTrial
	OnTrial bool      // true if the active configuration is on trial
	Now     time.Time // decides whether a CA has expired
	// Upgrade says why an upgrade is still on trial; nil if no upgrade is on trial.
	Upgrade  error
	Machine  Machine
	Hardware Hardware
	Caller   Caller
}

// Machine describes what the machine can run.
type Machine struct {
	Memory int64 // in bytes; 0 if unknown
	CPUs   int
	// InMemory is true if the system runs from memory. It then stores nothing and has no data of a
	// cluster.
	InMemory  bool
	NoStorage string // why no disk is mounted for storage; empty if a disk is mounted
	// Addresses are the present addresses that other machines can reach; nil if they are unknown.
	Addresses []netip.Addr
	// CAs says why the CAs of the next Cluster document are unusable. It is nil if they are usable,
	// and on a worker, which holds no CA key.
	CAs error
	// Parts maps each part of DATA that is on a volume to the name of the volume.
	Parts map[config.VolumeUse]string
}

// Hardware lists names of the next configuration that do not fit the hardware of the machine.
type Hardware struct {
	MissingLinks []string // selectors of links that do not exist
	PresentLinks []string // names of the machine's links
	KnownLinks   []string // selectors of the active configuration
	// TakenLinks are names of new links that already belong to hardware or to a link of another
	// component. Names of the active configuration are not among them.
	TakenLinks []string
	// Unusable are kernel modules and parameters that the machine lacks, with the reason. Their
	// path starts below Machine.spec, for example "sysctls[\"a\"]: reason".
	Unusable []string
}

// Caller describes the caller of a change.
type Caller struct {
	// CA is the fingerprint of the CA of the caller's certificate. It is empty if the caller is not
	// an operator.
	CA string
	// Operators are the operator CAs that the machine trusts with the next configuration.
	Operators []*x509.Certificate
}

// Check returns the problems of the change from the active configuration (before; nil if none) to
// next. It returns nil if the change is permitted. It checks the rules in order of severity, and
// returns only the problems of the first rule that has any.
func Check(before, next *config.Config, f Facts) Problems {
	var old Problems
	if !f.Machine.InMemory {
		old = CheckFixed(before, next, f.Now)
	}
	for _, problems := range []Problems{
		old, CheckMachine(next, f.Machine), checkLockout(next, f.Caller), checkMode(before, next, f), f.checkHardware(next),
	} {
		if len(problems) > 0 {
			return problems
		}
	}
	return nil
}

// checkHardware returns a problem for each name that the hardware lacks. It returns nil if the
// caller forces the change.
func (f Facts) checkHardware(next *config.Config) Problems {
	if f.Request.Force {
		return nil
	}
	var all Problems
	for _, line := range f.Hardware.Missing(next) {
		all = append(all, split(line, "correct it, or apply it with --force if this comes later"))
	}
	return all
}

// Warnings returns the warnings of a permitted change: the missing hardware that the caller accepts
// by force, and the changes that can cut off the caller.
func (f Facts) Warnings(next *config.Config) (hardware, cutOff []string) {
	if f.Request.Force {
		hardware = f.Hardware.Missing(next)
	}
	return hardware, f.Trial.warnings()
}

// checkMode rejects a request if its mode or its options are impossible for this change.
func checkMode(before, next *config.Config, f Facts) Problems {
	r := f.Request
	if r.Patch && f.OnTrial && r.Mode != api.ApplyRequest_MODE_TRY && r.Mode != api.ApplyRequest_MODE_DRY_RUN {
		return problem("", "the configuration to be changed is on trial, and would stay with the change", "confirm it first (`orlopctl confirm-config`), apply a complete configuration, or use mode try")
	}
	if r.TrialDuration != nil && f.Trial.Duration == 0 {
		return problem("", "a trial time is given without a trial", "use mode try")
	}
	if r.NoTrial && r.Mode == api.ApplyRequest_MODE_TRY {
		return problem("", "a trial and no trial are both requested", "omit one of them")
	}
	if len(r.TrialName) > maxTrialName {
		return problem("", fmt.Sprintf("the name of the trial has %d bytes", len(r.TrialName)), fmt.Sprintf("the limit is %d", maxTrialName))
	}
	if problems := checkKeyMode(before, next, f); len(problems) > 0 {
		return problems
	}
	if f.Upgrade != nil && before != nil && !reflect.DeepEqual(before.Approvals(), next.Approvals()) {
		// A rollback would restore the rule of the other version.
		return problem("Machine.spec.trust.approvals", fmt.Sprintf("cannot change now: %v", f.Upgrade), "")
	}
	stored := r.Mode == api.ApplyRequest_MODE_STAGED || r.Mode == api.ApplyRequest_MODE_REBOOT || r.Mode == api.ApplyRequest_MODE_TRY
	switch {
	case stored && f.Machine.NoStorage != "":
		return problem("", "no storage for a configuration until the next boot: "+f.Machine.NoStorage, "apply it at once")
	case r.Mode == api.ApplyRequest_MODE_NO_REBOOT && f.Machine.InMemory:
		return problem("", "an installation ends with a reboot", "use mode auto")
	case (r.Mode == api.ApplyRequest_MODE_NO_REBOOT || r.Mode == api.ApplyRequest_MODE_TRY) && !f.Machine.InMemory && ReplacesPodNetwork(before, next):
		return problem("Cluster.spec.external", "a replacement of the pod network needs a reboot", "use mode auto or reboot")
	}
	if problems := checkUnconfirmed(before, next, f); len(problems) > 0 {
		return problems
	}
	return checkTrial(before, next, f.Trial)
}

// checkUnconfirmed rejects a change that can cut off its caller and has no trial, unless the caller
// requested no trial. It permits the first Cluster document itself, because that document only adds
// CAs and addresses.
func checkUnconfirmed(before, next *config.Config, f Facts) Problems {
	if f.Request.NoTrial || f.Trial.noTrial == "" {
		return nil
	}
	cutOffs, hint := f.Trial.CutOffs, "use --mode reboot, which confirms it after the boot, or --no-trial, which applies it unconfirmed"
	if before != nil && before.Cluster == nil && next.Cluster != nil {
		cutOffs = slices.DeleteFunc(slices.Clone(cutOffs), func(line string) bool { return strings.HasPrefix(line, "Cluster.") })
		hint = "apply the other documents first and then the Cluster document, or use --no-trial"
	}
	if len(cutOffs) == 0 {
		return nil
	}
	field, _, _ := strings.Cut(cutOffs[0], ": ")
	return problem(field, "the change can cut you off, and has no trial: "+f.Trial.noTrial, hint)
}

// checkKeyMode rejects new encryption keys in a change that may be reverted. Secrets that the new
// keys have encrypted would be unreadable after the revert.
func checkKeyMode(before, next *config.Config, f Facts) Problems {
	const field = "Cluster.spec.secretsEncryptionKey, acceptedEncryptionKeys, kubernetes.apiServer.kms"
	switch {
	case !otherKeys(before, next):
		return nil
	case f.Request.Mode == api.ApplyRequest_MODE_TRY:
		return problem(field, "new encryption keys cannot be on trial: Secrets that they encrypt would stay after the revert", "apply them without a trial; `orlopctl trust rotate-key` replaces the key of the configuration")
	case f.Trial.Duration > 0:
		return problem(field, "new encryption keys cannot be on trial, but the rest of the change can cut you off and needs a trial", "apply the two one after the other")
	case f.Upgrade != nil: // A rollback would restore the keys of the other version.
		return problem(field, fmt.Sprintf("cannot change now: %v", f.Upgrade), "")
	}
	return nil
}

// checkTrial rejects a trial that the machine could not revert, and a trial time outside the
// limits.
func checkTrial(before, next *config.Config, t Trial) Problems {
	least := minTrial
	if t.AfterBoot {
		least = minBootTrial
	}
	switch {
	case t.Duration == 0:
		return nil
	case before == nil:
		return problem("", "no previous configuration to revert to", "use mode auto")
	case before.Cluster == nil && next.Cluster != nil:
		return problem("Cluster", "a first cluster cannot be on trial: its data would stay after the revert", "use mode auto")
	case t.AfterBoot && t.Duration < least:
		return problem("", fmt.Sprintf("a trial of %v is too short: it begins with a boot, and lasts at least %v", t.Duration, least), "use a longer --try-for")
	case t.Duration < least || t.Duration > maxTrial:
		return problem("", fmt.Sprintf("a trial of %v is not between %v and %v", t.Duration, least, maxTrial), "")
	}
	return nil
}

// Package health computes the health of a machine from its state: the checks that `orlopctl health`
// reports, and that a version on trial must pass. The computation is pure; Reporter and
// TrialWatcher watch the state and compute the health again after each change.
package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Machine is the state of a machine.
type Machine struct {
	Config  *config.Config // active configuration; nil if there is none
	Applied time.Time      // time of its activation
	// Expected are the names of the services that the configuration requires. A service that is
	// missing in Services is reported as not started yet.
	Expected   []string
	Services   []supervise.Status
	Membership Membership // of a worker
}

// Membership is the membership of a worker in its cluster.
type Membership struct {
	Joined  bool   // the worker has the certificates of a member
	Removed bool   // the certificates of the worker were revoked
	Problem string // why the worker cannot join, or cannot renew its certificates
}

// Of returns the checks of the configuration, of the membership of a worker, and of the services
// and their components.
func Of(m Machine) *api.HealthResponse {
	out := &api.HealthResponse{Healthy: true}
	add := func(name string, ok bool, detail string, since time.Time) {
		out.Healthy = out.Healthy && ok
		out.Checks = append(out.Checks, &api.HealthCheck{Name: name, Ok: ok, Detail: detail, Since: timestamppb.New(since)})
	}
	switch {
	case m.Config == nil:
		add("configuration", false, "none yet: apply one", m.Applied)
	case m.Config.Cluster == nil:
		add("configuration", false, "no Cluster document: this machine runs without Kubernetes", m.Applied)
	default:
		add("configuration", true, m.Config.Cluster.Metadata.Name, m.Applied)
	}
	if m.Config.IsWorker() {
		detail := m.Membership.Problem
		if detail == "" && !m.Membership.Joined {
			detail = "joining"
		}
		add("membership", m.Membership.Joined && !m.Membership.Removed, detail, m.Applied)
	}
	for _, want := range m.Expected {
		if !slices.ContainsFunc(m.Services, func(s supervise.Status) bool { return s.Name == want }) {
			add(want, false, "not started yet", m.Applied)
		}
	}
	for _, s := range m.Services {
		if len(s.Components) == 0 || !s.State.Alive() {
			add(s.Name, s.State == supervise.Running, strings.TrimSuffix(string(s.State)+": "+s.Detail, ": "), s.Since)
			continue
		}
		for _, c := range s.Components {
			add(c.Name, c.Ready && !strings.HasPrefix(c.Detail, nodespec.ProblemPrefix), c.Detail, c.Since)
		}
	}
	return out
}

// Add adds checks to the health of a machine. It ignores checks that are nil.
func Add(health *api.HealthResponse, checks ...*api.HealthCheck) {
	for _, c := range checks {
		if c != nil {
			health.Healthy = health.Healthy && c.Ok
			health.Checks = append(health.Checks, c)
		}
	}
}

// Firewall returns the check of the nftables rules. why is the reason for which the rules are not
// active. If why is empty, the check is nil.
func Firewall(why string, since time.Time) *api.HealthCheck {
	return failed("firewall", why, since)
}

// Volumes returns the check of the volumes on other disks. why describes the problems of the
// volumes. If why is empty, the check is nil. FailedCheck ignores this check, because the version
// is not at fault.
func Volumes(why string, since time.Time) *api.HealthCheck {
	return failed("volumes", why, since)
}

// failed returns a failed check; nil without a reason.
func failed(name, why string, since time.Time) *api.HealthCheck {
	if why == "" {
		return nil
	}
	return &api.HealthCheck{Name: name, Detail: why, Since: timestamppb.New(since)}
}

// Item is a file system with errors, or a disk with a warning.
type Item interface {
	// OK reports whether the operator has nothing to do at present.
	OK() bool
	// String describes the errors or the warning, and the remedy.
	String() string
}

// Storage returns the check of the file systems with errors; nil if there are none. FailedCheck
// ignores this check, because the version is not at fault.
func Storage[F Item](list []F) *api.HealthCheck { return listed("storage", list) }

// Wear returns the check of the disks that fail or wear out; nil if there are none. It fails only
// for disks that must be replaced. FailedCheck ignores this check, because the version is not at
// fault.
func Wear[D Item](list []D) *api.HealthCheck { return listed("wear", list) }

// Protection is how STATE and DATA are encrypted.
type Protection struct {
	State, Data bool // encrypted
	Plain       bool // STATE or DATA has content that is not encrypted
	// Demanded is true if the image demands that STATE and DATA are encrypted. An attacker with the
	// disk cannot change the image, but can replace the partitions and the configuration on STATE.
	Demanded bool
	// Recipients are the public keys of the recovery key of each encrypted partition.
	Recipients [][]string
	SecureBoot string // mode; empty if no partition is encrypted
}

// EncryptionCheck is the name of the check of Encryption.
const EncryptionCheck = "encryption"

// Encryption returns a check of the encryption of STATE and DATA; nil if they are as the image and
// the configuration request, or if they are not encrypted and neither mentions it. A machine is
// unhealthy only if one partition is encrypted alone, or none against the demand of the image.
func Encryption(c *config.Config, p Protection) *api.HealthCheck {
	var warnings []string
	warn := func(text string) { warnings = append(warnings, text) }
	encrypted := p.State && p.Data
	choice := c != nil && c.Machine.Spec.Disk.Encryption != nil
	replaced := p.Plain && p.Demanded
	switch {
	case p.State != p.Data && !p.Plain:
		warn("only one of STATE and DATA is encrypted, because the format of the other one was interrupted or has failed: reboot the machine, which then formats it")
	case p.State != p.Data:
		warn("only one of STATE and DATA is encrypted: the disk was changed outside this machine; reset the machine")
	case replaced:
		warn("STATE and DATA are not encrypted, although the image of this machine demands it: they were formatted by a version that does not, or the disk was changed outside this machine; " +
			"install the machine again")
	case choice && !encrypted && c.EncryptsDisk():
		warn("STATE and DATA are not encrypted: they were formatted before Machine.spec.disk.encryption; install the machine again with the configuration in its image")
	case choice && !encrypted:
		warn("STATE and DATA are not encrypted, as configured: a stolen disk has all keys of this machine")
	case choice && !c.EncryptsDisk():
		warn("STATE and DATA are encrypted, although Machine.spec.disk.encryption says none: they were formatted before it")
	case choice && !sameRecipients(c.Machine.Spec.Disk.Encryption.Recovery.Recipients, p.Recipients):
		warn("the recovery keys are encrypted to other recipients than those of Machine.spec.disk.encryption: the partitions were formatted before it")
	}
	if (p.State || p.Data) && p.SecureBoot != "enabled" {
		warn("the mode of Secure Boot is " + p.SecureBoot + ", so the next boot may not open STATE and DATA")
	}
	if len(warnings) == 0 {
		return nil
	}
	return &api.HealthCheck{Name: EncryptionCheck, Ok: p.State == p.Data && !replaced, Detail: strings.Join(warnings, "; "), Since: timestamppb.New(time.Time{})}
}

// sameRecipients reports whether each partition has exactly the configured recipients, in any
// order.
func sameRecipients(configured []config.Recipient, partitions [][]string) bool {
	var want []string
	for _, r := range configured {
		want = append(want, string(r))
	}
	slices.Sort(want)
	return !slices.ContainsFunc(partitions, func(have []string) bool { return !slices.Equal(slices.Sorted(slices.Values(have)), want) })
}

// listed returns a check with an entry for each item; nil for none.
func listed[F Item](name string, list []F) *api.HealthCheck {
	if len(list) == 0 {
		return nil
	}
	check := &api.HealthCheck{Name: name, Ok: true, Since: timestamppb.New(time.Time{})}
	var details []string
	for _, s := range list {
		check.Ok = check.Ok && s.OK()
		details = append(details, s.String())
	}
	check.Detail = strings.Join(details, "; ")
	return check
}

// Unanswered returns the check of a partition that does not answer; nil if err is nil. The
// parameter what completes the text "it is unknown …" in the detail, for example with "which epoch
// is the highest". FailedCheck ignores this check, because the version is not at fault.
func Unanswered(partition, what string, err error, since time.Time) *api.HealthCheck {
	if err == nil {
		return nil
	}
	return &api.HealthCheck{Name: "storage", Since: timestamppb.New(since),
		Detail: fmt.Sprintf("%s does not answer (%v), so it is unknown %s; reboot the machine, and replace the disk if this happens again", partition, err, what)}
}

// ConfigurationNotActive makes the check of the configuration fail, with the reason.
func ConfigurationNotActive(health *api.HealthResponse, why string) {
	health.Healthy = false
	for _, c := range health.Checks {
		if c.Name == "configuration" {
			c.Ok, c.Detail = false, why
		}
	}
}

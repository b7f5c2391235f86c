package main

import (
	"context"
	"fmt"
	"time"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/approvals"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/approval"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// The calls that two operators must approve (docs/decisions/0123-two-person-approval.md).

func newApprovals(m *machine) *approvals.Gate {
	return approvals.New(approvals.Deps{
		Config: func() *config.Config { return m.config.active.Current().Config },
		Key: func() string {
			if key := m.identity.Key(); key != nil {
				return pki.KeyFingerprint(&key.PublicKey)
			}
			return ""
		},
		Floor: func() time.Time { return m.domains.clock.floor.Now(time.Now()) },
		File:  paths.UsedApprovals,
		Event: m.reports.events.From("approvals"),
	})
}

// approve rejects a change of guarded fields without an approval. For a dry run, it only adds the
// changes to the answer. before is the active configuration; nil if there is none. The rule of the
// active configuration decides, so a change of the rule itself needs an approval by the old rule.
func (a *applier) approve(ctx context.Context, before, next *config.Config, r *api.ApplyRequest, answer *api.ApplyResponse) error {
	rule := before.Approvals()
	changes := config.Guarded(rule, before, next)
	if r.Mode == api.ApplyRequest_MODE_DRY_RUN {
		answer.Guarded = changes
		return nil
	}
	by, err := a.approvals.CheckChange(rule, api.Config_Apply_FullMethodName, changes, r.Approval)
	machinedapi.SetApprovers(ctx, by)
	return err
}

// checkRollback rejects a rollback to a version with saved documents (nil for none). The rollback
// needs an approval if the documents have other values of guarded fields than the active
// configuration. This is always so for a version that does not know approvals, because its
// configuration has no rule. A rollback without an approval needs force if the machine would trust
// a removed CA again.
func checkRollback(ctx context.Context, m *machine, saved []byte, force bool) error {
	if err := m.domains.extensions.CheckRollback(saved); err != nil {
		return err
	}
	now := m.config.active.Current().Config
	rule := now.Approvals()
	if rule == nil || keepsGuarded(rule, now, saved) {
		if force {
			return nil
		}
		return checkReturningCAs(now, saved)
	}
	p := approval.FromContext(ctx)
	by, err := m.config.approvals.CheckRollback(rule, api.Upgrade_Rollback_FullMethodName, p.Content, p.Approval)
	machinedapi.SetApprovers(ctx, by)
	return err
}

// checkReturningCAs returns an error if a rollback from the configuration now to saved documents
// makes the machine trust a CA again that was removed since the upgrade, or if this version cannot
// read the documents. Without saved documents, a rollback retains the configuration.
func checkReturningCAs(now *config.Config, saved []byte) error {
	if now == nil || saved == nil {
		return nil
	}
	then, problems := config.Parse("", saved)
	if err := problems.Err(); err != nil {
		return fmt.Errorf("this version cannot read the saved configuration of the previous version, so it cannot tell which CAs the machine would trust again; use --force to trust them: %w", err)
	}
	owner, err := ownership.Owner()
	if err != nil {
		return err
	}
	return ownership.CheckRollback(now, then, owner)
}

// keepsGuarded reports whether the return from the configuration now to saved documents changes no
// guarded field. A rollback retains the encryption keys (activeconfig.Manager.Restore).
func keepsGuarded(rule *config.Approvals, now *config.Config, saved []byte) bool {
	saved, err := transition.WithPresentKeys(saved, config.Marshal(now))
	if err != nil {
		return false
	}
	then, problems := config.Parse("", saved)
	return len(problems) == 0 && then != nil && len(config.Guarded(rule, now, then)) == 0
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/facts"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// checkTimeout bounds checkAccess and checkSettings, in which the orchestrator checks a part of the
// configuration. A check takes less than a second on real hardware.
const checkTimeout = time.Minute

// parseRequest reads the documents of a request. It checks them without regard to this machine.
func (a *applier) parseRequest(before activeconfig.Active, filename string, r *api.ApplyRequest) (*config.Config, []byte, error) {
	filename, text, err := a.active.Requested(before, filename, r)
	if err != nil {
		return nil, nil, transition.Refuse(err)
	}
	next, problems := config.Parse(filename, text)
	// without a synchronized clock, the expiry of certificates cannot be checked
	if t, _ := a.clock.status.Get(); len(problems) == 0 && t.Synced {
		problems = next.CheckTime(time.Now())
	}
	return next, text, problems.Err()
}

// checkTransition rejects a change that this machine cannot make, and returns the facts about the
// machine on which the decision depends.
func (a *applier) checkTransition(ctx context.Context, before activeconfig.Active, next *config.Config, r *api.ApplyRequest) (transition.Facts, error) {
	change := facts.Change{Before: before.Config, Fallback: a.active.Fallback(before), OnTrial: before.OnTrial(), Request: r}
	facts, err := a.facts.Transition(ctx, change, next)
	if err != nil {
		return facts, err
	}
	if err := transition.Check(before.Config, next, facts).Err(); err != nil {
		return facts, err
	}
	if err := a.checkAccess(ctx, next); err != nil {
		return facts, err
	}
	return facts, a.checkSettings(ctx, next)
}

// checkAccess rejects expressions for authentication and authorization (Cluster document) that the
// API server could not compile: the API server would not start. Only the code of Kubernetes can
// check them, so the orchestrator checks them, as the user of the API server.
func (a *applier) checkAccess(ctx context.Context, c *config.Config) error {
	if c.Cluster == nil {
		return nil
	}
	check := nodeplan.Access(c, "").Check(c.Cluster.Spec.Networks.Domain)
	if check == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	text, err := a.commands.run(ctx, paths.UserAPI, "check-access", check)
	return refusal(err, credentials.InDocument(string(text)))
}

// checkSettings rejects settings of components (Cluster document) with which a component would not
// start. pkg/config validates them without the code of Kubernetes, so a difference between both is
// found here.
func (a *applier) checkSettings(ctx context.Context, next *config.Config) error {
	if next.Cluster == nil {
		return nil
	}
	settings := nodeplan.Settings(next)
	if settings == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	text, err := a.commands.run(ctx, paths.UserAPI, "check-settings", settings)
	return refusal(err, "Cluster.spec.kubernetes: "+strings.Join(strings.Split(strings.TrimSpace(string(text)), "\n"), "; "))
}

// refusal returns the error of a command that checks a configuration: with status 1, it has found
// problems.
func refusal(err error, problems string) error {
	if failed := (*supervise.ExitError)(nil); errors.As(err, &failed) && failed.Exit.Code == 1 {
		return transition.Refuse(errors.New(problems))
	}
	return err
}

// reencryptSecrets rewrites all Secrets with the current encryption key before an old key is
// dropped. It returns the operations, or with dry the planned operations. An error rejects the
// configuration: a machine without the old key cannot read the Secrets that are encrypted with it.
func (a *applier) reencryptSecrets(ctx context.Context, before, next *config.Config, dry bool) ([]string, error) {
	dropped := transition.DroppedKeys(before, next)
	if len(dropped) == 0 {
		return nil, nil
	}
	refused := func(err error) ([]string, error) {
		return nil, fmt.Errorf("configuration refused; some Secrets may be encrypted again already, nothing else has changed: Cluster.spec: cannot drop the encryption key %s: %w", strings.Join(dropped, ", "), err)
	}
	done, err := a.etcd.Reencrypt(ctx, dry)
	if err != nil {
		return refused(err)
	}
	return []string{fmt.Sprintf("drop the encryption key %s: %d of %d Secrets were encrypted with another key than the present one, and are rewritten", strings.Join(dropped, ", "), done.Reencrypted, done.Secrets)}, nil
}

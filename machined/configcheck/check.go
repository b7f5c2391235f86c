package configcheck

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// timeout bounds a check. It takes less than a second on real hardware.
const timeout = time.Minute

// Checker checks configurations.
type Checker struct {
	// Command runs a command of the orchestrator.
	Command nodespec.Command
}

// Transition rejects a configuration that this machine cannot change to, given the facts about the
// machine, or with which a component would not start. before is the active configuration; nil
// without any.
func (k Checker) Transition(ctx context.Context, before, next *config.Config, f transition.Facts) error {
	if err := transition.Check(before, next, f).Err(); err != nil {
		return err
	}
	if err := k.Access(ctx, next); err != nil {
		return err
	}
	return k.Settings(ctx, next)
}

// Access rejects expressions for authentication and authorization (Cluster document) that the API
// server could not compile.
func (k Checker) Access(ctx context.Context, c *config.Config) error {
	if c.Cluster == nil {
		return nil
	}
	check := nodeplan.Access(c, "").Check(c.Cluster.Spec.Networks.Domain)
	if check == nil {
		return nil
	}
	return k.run(ctx, "check-access", check, credentials.InDocument)
}

// Settings rejects settings of components (Cluster document) with which a component would not
// start.
func (k Checker) Settings(ctx context.Context, c *config.Config) error {
	if c.Cluster == nil {
		return nil
	}
	settings := nodeplan.Settings(c)
	if settings == nil {
		return nil
	}
	return k.run(ctx, "check-settings", settings, func(lines string) string {
		return "Cluster.spec.kubernetes: " + strings.Join(strings.Split(strings.TrimSpace(lines), "\n"), "; ")
	})
}

// run runs a command that checks a configuration. Exit status 1 means that the command has found
// problems; describe makes the message from its output.
func (k Checker) run(ctx context.Context, command string, request any, describe func(lines string) string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := k.Command(ctx, paths.UserAPI, command, request)
	if failed := (*supervise.ExitError)(nil); errors.As(err, &failed) && failed.Exit.Code == 1 {
		return transition.Refuse(errors.New(describe(string(text))))
	}
	return err
}

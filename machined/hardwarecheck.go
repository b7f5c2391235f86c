package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
)

// What a configuration names has to be on this machine: its links, kernel modules and kernel
// parameters. Anything else is a mistake that costs the machine its address, or a value that never
// takes effect.

// unfit returns what the next configuration names and this machine does not have, one line each.
// What the configuration in force names already is left out: a card that has failed must not keep
// an operator from changing something else.
func (m *machine) unfit(before, next *config.Config) ([]string, error) {
	missing, there, err := m.network.MissingLinks(networkConfig(next))
	if err != nil {
		return nil, fmt.Errorf("network: cannot list links: %w", err)
	}
	lines := missingLinks(next, missing, there, selectors(networkConfig(before)))
	unusable, err := m.kernel.Unusable(m.hostConfig(before), m.hostConfig(next))
	if err != nil {
		return nil, err
	}
	for _, u := range unusable {
		lines = append(lines, "Machine.spec."+u)
	}
	return lines, nil
}

// selectors are how a configuration names its links.
func selectors(c network.Config) []string { return network.Missing(c, network.Facts{}) }

// missingLinks says of which links the configuration has more than the machine. there are the
// machine's own, known those that the configuration in force names. It is pure.
func missingLinks(next *config.Config, missing, there, known []string) (lines []string) {
	has := "it has " + strings.Join(there, ", ")
	if len(there) == 0 {
		has = "it has no Ethernet link"
	}
	for i, name := range selectors(networkConfig(next)) {
		if slices.Contains(missing, name) && !slices.Contains(known, name) {
			lines = append(lines, fmt.Sprintf("Network.spec.links[%d]: this machine has no link %s; %s", i, name, has))
		}
	}
	return lines
}

// refuseUnfit refuses what does not fit this machine. With force it returns the same as warnings.
func (m *machine) refuseUnfit(before, next *config.Config, force bool) (warnings []string, err error) {
	lines, err := m.unfit(before, next)
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	if force {
		return lines, nil
	}
	return nil, fmt.Errorf("configuration refused, nothing was changed: %s; correct it, or apply it with --force if this comes later", strings.Join(lines, "; "))
}

// linkTime is how long the links may take to appear that a configuration on a medium names: it is
// read while drivers are still starting cards.
const linkTime = 15 * time.Second

// awaitLinks waits until the machine has the links of a configuration on a medium, and otherwise
// refuses it: without an address it cannot be corrected over the network, and a medium is not read
// again once the machine is configured. Links that a module of the configuration may bring are not
// waited for.
func awaitLinks(ctx context.Context, next *config.Config, look func(network.Config) (missing, there []string, err error), patience time.Duration) error {
	if len(next.Machine.Spec.KernelModules) > 0 {
		return nil
	}
	late := time.After(patience)
	for {
		missing, there, err := look(networkConfig(next))
		if err != nil {
			return err
		}
		lines := missingLinks(next, missing, there, nil)
		if len(lines) == 0 {
			return nil
		}
		select {
		case <-time.After(linkTick):
		case <-late:
			return fmt.Errorf("configuration refused: %s", strings.Join(lines, "; "))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// linkTick is how often awaitLinks looks.
const linkTick = 200 * time.Millisecond

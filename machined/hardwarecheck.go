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

// The links, kernel modules and kernel parameters of a configuration must exist on this machine. A
// missing name is a mistake that costs the machine its address, or a value without effect.

// missingHardware returns the names of the next configuration that do not exist on this machine,
// one line each. Names of the active configuration are skipped: a failed card must not prevent
// other changes.
func (m *machine) missingHardware(before, next *config.Config) ([]string, error) {
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

// selectors returns the link selectors of a configuration.
func selectors(c network.Config) []string { return network.Missing(c, network.Facts{}) }

// missingLinks reports the links of the configuration that the machine lacks. there are the
// machine's links, known the links of the active configuration. It is pure.
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

// checkHardware rejects a configuration that does not match this machine. With force it returns
// warnings instead.
func (m *machine) checkHardware(before, next *config.Config, force bool) (warnings []string, err error) {
	lines, err := m.missingHardware(before, next)
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	if force {
		return lines, nil
	}
	return nil, fmt.Errorf("configuration refused, nothing was changed: %s; correct it, or apply it with --force if this comes later", strings.Join(lines, "; "))
}

// linkTimeout bounds the wait for the links of a configuration on a medium: it is read while
// drivers still initialize cards.
const linkTimeout = 15 * time.Second

// awaitLinks waits until the machine has the links of a configuration on a medium, or rejects it:
// without an address it cannot be corrected over the network, and a configured machine does not
// read media. It does not wait if the configuration names modules, which may create links.
func awaitLinks(ctx context.Context, next *config.Config, look func(network.Config) (missing, there []string, err error), timeout time.Duration) error {
	if len(next.Machine.Spec.KernelModules) > 0 {
		return nil
	}
	deadline := time.After(timeout)
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
		case <-time.After(linkPollInterval):
		case <-deadline:
			return fmt.Errorf("configuration refused: %s", strings.Join(lines, "; "))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// linkPollInterval is the poll interval of awaitLinks.
const linkPollInterval = 200 * time.Millisecond

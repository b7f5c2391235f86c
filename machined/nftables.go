package main

import (
	"context"
	"time"

	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// rulesTimeout bounds the installation of rules, which takes milliseconds on real hardware.
const rulesTimeout = time.Minute

// setRules returns the function that installs commands of nft(8), all of them or none. modules are
// the kernel modules that they need in addition to tables and connection state.
func setRules(kernel *host.Kernel, reaper *supervise.Reaper) func(ctx context.Context, commands string, modules ...string) error {
	return func(ctx context.Context, commands string, modules ...string) error {
		ctx, cancel := context.WithTimeout(ctx, rulesTimeout)
		defer cancel()
		if err := kernel.LoadModules(append([]string{"nf_tables", "nft_ct", "nf_conntrack"}, modules...)...); err != nil {
			return err
		}
		_, err := reaper.RunCommand(ctx, supervise.Command{Args: []string{paths.Nft, "-f", "-"}, Stdin: []byte(commands)})
		return err
	}
}

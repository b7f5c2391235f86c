package firewall

import (
	"context"
	"time"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// rulesTimeout bounds the installation of rules, which takes milliseconds on real hardware.
const rulesTimeout = time.Minute

// NewSetRules returns the function that installs commands of nft(8), all of them or none: with
// loadModules, which loads kernel modules, and run, which runs a program. The modules of a call are
// needed in addition to tables and connection state.
func NewSetRules(loadModules func(names ...string) error, run func(context.Context, supervise.Command) ([]byte, error)) SetRules {
	return func(ctx context.Context, commands string, modules ...string) error {
		ctx, cancel := context.WithTimeout(ctx, rulesTimeout)
		defer cancel()
		if err := loadModules(append([]string{"nf_tables", "nft_ct", "nf_conntrack"}, modules...)...); err != nil {
			return err
		}
		_, err := run(ctx, supervise.Command{Args: []string{paths.Nft, "-f", "-"}, Stdin: []byte(commands)})
		return err
	}
}

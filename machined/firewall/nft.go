package firewall

import (
	"context"
	"time"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// rulesTimeout bounds the installation of rules, which takes milliseconds on real hardware.
const rulesTimeout = time.Minute

// NewSetRules returns the function that installs commands of nft(8), all of them or none.
// loadModules loads kernel modules, run runs a program. Each call loads the modules for tables and
// connection state, and the modules in its argument.
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

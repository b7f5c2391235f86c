package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Matches evaluates the expression of a rule for an inventory (RuleDeps.Matches). The orchestrator
// has the compiler (docs/decisions/0016-disk-expressions.md); its process has the rights of the API
// server's user, and no network peer reaches it.
func Matches(ctx context.Context, run nodespec.Command, expression string, h inventory.Host) (bool, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return false, err
	}
	a, err := nodespec.Run[nodespec.HostMatchResult](ctx, run, paths.UserAPI, "match-host", nodespec.HostMatchRequest{Expression: expression, Inventory: text})
	if err == nil && a.Problem != "" {
		err = errors.New("match: the expression " + a.Problem)
	}
	return a.Matches, err
}

// ReadClaims reads the list of the controllers from their directory (ClaimsDeps.Read).
func ReadClaims(dir string) ([]byte, error) {
	text, err := safefile.ReadUntrusted(dir, nodespec.ClaimsFile, claim.MaxList)
	if err != nil {
		return nil, fmt.Errorf("list of claims: %w", err)
	}
	return text, nil
}

package nodespec

import "encoding/json"

// HostMatchRequest is an expression about a machine that waits for a configuration.
type HostMatchRequest struct {
	Expression string          `json:"expression"`
	Inventory  json.RawMessage `json:"inventory"` // an inventory.Host
}

// HostMatchResult is the result of the evaluation.
type HostMatchResult struct {
	// error of the expression; empty if it has a value
	Problem string `json:"problem,omitempty"`
	Matches bool   `json:"matches"`
}

package nodespec

import "encoding/json"

// HostMatchRequest is the input of a command that evaluates an expression for a machine that waits
// for a configuration.
type HostMatchRequest struct {
	Expression string          `json:"expression"`
	Inventory  json.RawMessage `json:"inventory"` // inventory.Host in JSON
}

// HostMatchResult is the result of the evaluation.
type HostMatchResult struct {
	// error of the expression; empty for a valid expression
	Problem string `json:"problem,omitempty"`
	Matches bool   `json:"matches"`
}

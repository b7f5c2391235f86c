package nodespec

import "github.com/orlop-os/orlop/pkg/emulation"

// RaiseLevel is the input of `orchestrator raise-level`.
type RaiseLevel struct {
	By string `json:"by"` // caller
}

// LevelRaised is the output of `orchestrator raise-level`: the level before and after the call,
// which are equal if the level was raised before.
type LevelRaised struct {
	From emulation.Minor `json:"from"`
	To   emulation.Minor `json:"to"`
}

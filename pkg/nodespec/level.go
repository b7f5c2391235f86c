package nodespec

import "github.com/orlop-os/orlop/pkg/emulation"

// RaiseLevel is the input of `orchestrator raise-level`.
type RaiseLevel struct {
	By string `json:"by"` // caller
}

// LevelRaised is the output of `orchestrator raise-level`: the level before and after the call.
// Both are equal if the cluster had the level already.
type LevelRaised struct {
	From emulation.Minor `json:"from"`
	To   emulation.Minor `json:"to"`
}

// Package transition decides whether a configuration may replace the active configuration. From
// both configurations and facts about the machine, it computes the problems of the change, or the
// trial that the change needs.
//
// The package owns the rules that protect a running machine: values on which the data of a cluster
// depends, the replacement of CAs and encryption keys step by step, the lockout of the caller,
// changes that can cut off the caller, the limits of trials, and names that the hardware lacks.
//
// It is pure: it does not read files, the clock or the state of the kernel. Other packages parse
// the documents (pkg/config), check access expressions and disk expressions (the orchestrator), and
// store and activate configurations (machined/apply.go).
package transition

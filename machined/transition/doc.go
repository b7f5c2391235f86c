// Package transition decides whether a configuration may replace another: from the active
// configuration, the next configuration and facts about the machine it returns the problems of the
// change, or the trial that the change needs.
//
// The package owns the rules that protect a running machine: values on which the data of a cluster
// depends, the replacement of CAs and encryption keys step by step, the lockout of the caller,
// changes that can cut off the caller, the limits of trials, and names that the hardware lacks.
//
// It is pure: it reads no file, no clock and no kernel. It does not parse documents (pkg/config),
// does not check access expressions and disk expressions, which need the orchestrator, and stores
// and activates nothing (machined/apply.go).
package transition

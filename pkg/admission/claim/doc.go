// Package claim has the documents with which a cluster takes waiting machines as workers
// (docs/decisions/0107-claims.md): the worker template and the approval rule
// (docs/decisions/0120-approval-rules.md), which an operator signs, and the list of claims that the
// controllers pass to machined.
//
// A template is a configuration of a worker without a name, without a join ticket and without any
// other secret. A waiting machine accepts it only with the signature of its own operator, and only
// from a control-plane machine of the cluster that the template names. A control-plane machine
// admits a claimed machine only with a template that its own operator has signed.
package claim

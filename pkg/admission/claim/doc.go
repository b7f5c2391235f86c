// Package claim has the documents by which waiting machines become workers of a cluster
// (docs/decisions/0107-claims.md): the worker template and the approval rule
// (docs/decisions/0120-approval-rules.md), both signed by an operator, and the list of claims that
// the controllers pass to machined.
//
// A template is a configuration of a worker without a name, without a join ticket and without any
// other secret. A waiting machine accepts a template only with the signature of an operator that
// the machine trusts, and only from a control-plane machine of the cluster that the template names.
// A control-plane machine admits a claimed machine only with a template that an operator of the
// control plane has signed.
package claim

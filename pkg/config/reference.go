package config

import _ "embed" // for Reference

// Reference is the annotated reference: a file with every field of every document, its unit, its
// default and the source of the rule. Its keys are public; never use them.
//
//go:embed reference.yaml
var Reference string

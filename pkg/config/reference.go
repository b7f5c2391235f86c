package config

import _ "embed" // for Reference

// Reference is the annotated reference: one file with every field of every document, its unit, its default and where
// the rule comes from. Its keys are published; never use them.
//
//go:embed reference.yaml
var Reference string

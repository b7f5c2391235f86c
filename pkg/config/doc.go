// Package config is the configuration of a machine: Kubernetes-style documents (apiVersion, kind,
// metadata, spec), several in a YAML stream, parsed into plain structs.
//
//	Parse → one Config, or all Problems of the file:
//	        file, line, column, field, reason, expected value, nearest name
//
// The package defines the types with their units and defaults, the validation of values, and the
// detection of contradictions. The annotated reference, reference.yaml in this directory, describes
// every field: its comments are the only descriptions of the fields. schema.json contains a copy of
// these comments. Tests check that the reference is a valid configuration with every field.
//
// The package reads no kernel state, no files and no clock, so the same text gives the same result
// on every machine at any time (CheckTime gets the time as an argument). It does not know the
// hardware of the machine. It does not generate keys or certificates (pkg/pki does). It imports no
// Kubernetes library, because PID 1 and orlopctl link the package.
//
// Parse accepts a subset of YAML: no anchors, no aliases, no merge keys, no tags, no duplicate
// keys, no null, at most MaxSize bytes and MaxDepth levels. An unknown field is always an error.
package config

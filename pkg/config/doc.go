// Package config is the configuration of a machine: Kubernetes-style documents (apiVersion, kind,
// metadata, spec), several in a YAML stream, parsed into plain structs.
//
//	Parse → one Config, or all Problems of the file:
//	        file, line, column, field, reason, expected value, nearest name
//
// It defines the types with their units and defaults, the validation of values, and the detection
// of contradictions. The annotated reference, reference.yaml in this directory, describes every
// field: its comments are the only texts about the fields, and schema.json contains them. It is a
// test.
//
// It depends on no kernel, files or clock, so the same text gives the same result on every machine
// at any time (except CheckTime, which gets the time as an argument). It does not know the hardware
// of the machine. It does not generate keys or certificates (pkg/pki does). It imports no
// Kubernetes library, because PID 1 and orlopctl link it.
//
// It accepts a subset of YAML: no anchors, no aliases, no merge keys, no tags, no duplicate keys,
// no null, at most MaxSize bytes and MaxDepth levels. An unknown field is always an error.
package config

// Package config is the configuration of a machine: Kubernetes-style documents (apiVersion, kind,
// metadata, spec), several in one YAML stream, read into plain structs.
//
//	Parse → one Config, or all Problems of the file: file, line, column, field, reason, what was expected, nearest name
//
// It owns the types, their units, their defaults, what may be written and what contradicts itself.
// The annotated reference of every field is reference.yaml beside this file; it is a test.
//
// What it deliberately does not do: it knows no kernel, no files and no clock, so the same text
// gives the same answer on every machine and at every time (CheckTime is the one exception, and it
// is given the time). It does not know what is plugged into the machine. It does not make keys or
// certificates (pkg/pki does). It imports no Kubernetes library, because PID 1 and orlopctl link
// it.
//
// YAML is accepted in a narrow form: no anchors, no aliases, no merge keys, no tags, no duplicate
// keys, no null, at most MaxSize bytes and MaxDepth levels. A field that is unknown is an error,
// never ignored.
package config

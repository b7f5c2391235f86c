// Package strictyaml decodes documents of operators, in YAML or JSON, without loss. It returns an
// error for a field that occurs twice, an unknown field, and text after the document. The error
// names the line or the path of the field. The documents of package config have a decoder of their
// own, with more exact messages.
package strictyaml

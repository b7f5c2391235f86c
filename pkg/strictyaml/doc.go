// Package strictyaml decodes documents of operators, in YAML or JSON, without loss: a field
// that occurs twice, an unknown field and text after the document are errors, and the error has a
// line or a path. Documents of package config have their own decoder, with more exact messages.
package strictyaml

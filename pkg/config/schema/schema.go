// Package schema generates the JSON Schema of the configuration for editors: the syntax that
// pkg/config accepts, with the comments of its structs as descriptions. It is separate from
// pkg/config because it needs the Go sources and a library that PID 1 must not link; only tests run
// it. The result is pkg/config/schema.json, which package config provides as config.Schema.
//
// The schema describes the syntax of a single document. It does not detect contradictions between
// fields and documents: config.Parse is authoritative, and stricter.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"
	"go.yaml.in/yaml/v3"

	"github.com/orlop-os/orlop/pkg/config"
)

const (
	module  = "github.com/orlop-os/orlop"
	address = "https://orlop.dev/schema/v1alpha1.json"
)

// Generate generates the schema. It reads the comments of package config, so the working directory
// must be the directory of this package, as in tests.
func Generate() ([]byte, error) {
	r := &jsonschema.Reflector{
		FieldNameTag: "yaml", RequiredFromJSONSchemaTags: true, Anonymous: true, ExpandedStruct: true, Mapper: scalar,
	}
	if err := r.AddGoComments(module+"/pkg/config/schema", "../", jsonschema.WithFullComment()); err != nil {
		return nil, fmt.Errorf("schema: cannot read the comments of package config: %w", err)
	}
	root := &jsonschema.Schema{
		Version: jsonschema.Version, ID: address, Title: "Orlop OS configuration",
		Description: "One document of a machine's configuration.", Definitions: jsonschema.Definitions{},
	}
	for _, document := range []any{config.Machine{}, config.Cluster{}, config.Network{}, config.Addon{}} {
		s := r.Reflect(document)
		kind := reflect.TypeOf(document).Name()
		for name, definition := range s.Definitions {
			root.Definitions[name] = definition
		}
		s.Version, s.Definitions = "", nil
		envelope(s, kind)
		root.Definitions[kind] = s
		root.OneOf = append(root.OneOf, &jsonschema.Schema{Ref: "#/$defs/" + kind})
	}
	for _, definition := range root.Definitions {
		tidy(definition)
	}
	if err := addDefaults(root); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(root); err != nil {
		return nil, fmt.Errorf("schema: cannot print: %w", err)
	}
	return out.Bytes(), nil
}

// envelope adds the two fields that identify a document's type; the structs do not contain them.
func envelope(s *jsonschema.Schema, kind string) {
	fields := jsonschema.NewProperties()
	fields.Set("apiVersion", &jsonschema.Schema{Const: config.APIVersion, Description: "Version of the document's form."})
	fields.Set("kind", &jsonschema.Schema{Const: kind, Description: "Kind of the document."})
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		fields.Set(p.Key, p.Value)
	}
	s.Properties = fields
	s.Required = append([]string{"apiVersion", "kind"}, s.Required...)
}

// addDefaults adds the defaults of an empty configuration to the schema, set by the same code as in
// Parse.
func addDefaults(root *jsonschema.Schema) error {
	nothing := config.New("", "").WithCluster("", config.Endpoint{}, config.PKI{}, config.EncryptionKey{})
	decoder := yaml.NewDecoder(bytes.NewReader(config.Marshal(nothing)))
	for {
		var document map[string]any
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("schema: cannot read the defaults: %w", err)
		}
		setDefaults(root, root.Definitions[document["kind"].(string)], document)
	}
}

func setDefaults(root, s *jsonschema.Schema, values map[string]any) {
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		name, isRef := strings.CutPrefix(p.Value.Ref, "#/$defs/")
		switch value := values[p.Key].(type) {
		case map[string]any:
			if isRef {
				setDefaults(root, root.Definitions[name], value)
			}
		case nil:
		case string:
			if value != "" && p.Value.Const == nil {
				p.Value.Default = value
			}
		default:
			p.Value.Default = value
		}
	}
}

// tidy joins each description to one line, because editors display it as a paragraph.
func tidy(s *jsonschema.Schema) {
	s.Description = strings.Join(strings.Fields(s.Description), " ")
	if s.Properties == nil {
		return
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		tidy(p.Value)
	}
}

// scalar returns the schema of a type with its own text format, or of a type with a fixed set of
// names.
func scalar(t reflect.Type) *jsonschema.Schema {
	if s, ok := scalars[t]; ok {
		copied := *s
		return &copied
	}
	if names, ok := reflect.Zero(t).Interface().(interface{ Names() []string }); ok && t.Kind() == reflect.String {
		s := &jsonschema.Schema{Type: "string"}
		for _, name := range names.Names() {
			s.Enum = append(s.Enum, name)
		}
		return s
	}
	if t.Kind() == reflect.Map {
		return &jsonschema.Schema{Type: "object", AdditionalProperties: &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string"}, {Type: "integer"}}}}
	}
	return nil
}

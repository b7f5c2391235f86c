// Package schema generates the JSON Schema of the configuration for editors: the syntax that
// pkg/config accepts, with the comments of the annotated reference as descriptions. The package is
// separate from pkg/config because it needs a library that PID 1 must not link; only tests use it.
// Its result is stored as pkg/config/schema.json.
//
// The schema describes the syntax of a single document. It does not detect contradictions between
// fields and documents: only config.Parse, which is stricter, decides whether a configuration is
// valid.
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
	address     = "https://orlop.dev/schema/v1alpha1.json"
	definitions = "#/$defs/"
)

// Generate returns the schema as JSON.
func Generate() ([]byte, error) {
	r := &jsonschema.Reflector{
		FieldNameTag: "yaml", RequiredFromJSONSchemaTags: true, Anonymous: true, ExpandedStruct: true, Mapper: scalar,
	}
	root := &jsonschema.Schema{
		Version: jsonschema.Version, ID: address, Title: "Orlop OS configuration",
		Description: "One document of a machine's configuration.", Definitions: jsonschema.Definitions{},
	}
	for _, document := range []any{config.Machine{}, config.Cluster{}, config.Network{}, config.Volume{}, config.Addon{}} {
		s := r.Reflect(document)
		kind := reflect.TypeOf(document).Name()
		for name, definition := range s.Definitions {
			root.Definitions[name] = definition
		}
		addLimits(root, s, reflect.TypeOf(document))
		s.Version, s.Definitions = "", nil
		envelope(s, kind)
		root.Definitions[kind] = s
		root.OneOf = append(root.OneOf, &jsonschema.Schema{Ref: definitions + kind})
	}
	if err := addDefaults(root); err != nil {
		return nil, err
	}
	d := describer{comments: config.ReferenceComments(), schema: root, described: map[string]bool{}}
	for _, kind := range root.OneOf {
		name := strings.TrimPrefix(kind.Ref, definitions)
		root.Definitions[name] = d.describe(root.Definitions[name], name)
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

// addLimits adds to the schema s of a type the limits of its integer fields, from the tag limits
// (limits.go of package config).
func addLimits(root, s *jsonschema.Schema, t reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
		if s.Items != nil {
			s = s.Items
		}
	}
	if name, isRef := strings.CutPrefix(s.Ref, definitions); isRef {
		s = root.Definitions[name]
	}
	if s.Properties == nil {
		return
	}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		property, _ := s.Properties.Get(name)
		if tag, limited := field.Tag.Lookup("limits"); limited && field.Type.Kind() == reflect.Int {
			least, most, _ := strings.Cut(tag, " to ")
			most, _, _ = strings.Cut(most, ",")
			property.Minimum, property.Maximum = json.Number(least), json.Number(most)
		}
		addLimits(root, property, field.Type)
	}
}

// addDefaults adds the default values to the schema. It takes them from an empty configuration, to
// which the same code as in Parse has applied the defaults.
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
		name, isRef := strings.CutPrefix(p.Value.Ref, definitions)
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

// describer adds the comments of the reference to the schema.
type describer struct {
	comments  map[string]string // by path
	schema    *jsonschema.Schema
	described map[string]bool // names of the definitions that have comments already
}

// describe returns a copy of the schema of an object, with the comments of the fields at a path. A
// definition in $defs gets the comments of the first path that refers to it. At a later path with
// other comments, the schema contains the object itself instead of a reference.
func (d describer) describe(s *jsonschema.Schema, path string) *jsonschema.Schema {
	out := *s
	out.Description = paragraph(d.comments[path])
	out.Properties = jsonschema.NewProperties()
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		field, at := *p.Value, path+"."+p.Key
		if field.Items != nil {
			field.Items = d.resolve(field.Items, at)
		} else {
			field = *d.resolve(&field, at)
		}
		if text := paragraph(d.comments[at]); text != "" {
			field.Description = text
		}
		out.Properties.Set(p.Key, &field)
	}
	return &out
}

// resolve returns s. But if s refers to a definition that already has comments, and the comments at
// this path differ from these, it returns a copy of the object with the comments of this path.
func (d describer) resolve(s *jsonschema.Schema, path string) *jsonschema.Schema {
	name, isRef := strings.CutPrefix(s.Ref, definitions)
	definition := d.schema.Definitions[name]
	if !isRef || definition.Properties == nil {
		return s
	}
	object := d.describe(definition, path)
	object.Description = ""
	if !d.described[name] {
		d.described[name] = true
		d.schema.Definitions[name] = object
	}
	if !reflect.DeepEqual(object, d.schema.Definitions[name]) {
		return object
	}
	return s
}

// paragraph joins a comment to one line, because editors display it as a paragraph.
func paragraph(comment string) string {
	var words []string
	for line := range strings.Lines(comment) {
		words = append(words, strings.Fields(strings.TrimPrefix(line, "#"))...)
	}
	return strings.Join(words, " ")
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
	if t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Bool {
		return &jsonschema.Schema{Type: "object", AdditionalProperties: &jsonschema.Schema{Type: "boolean"}}
	}
	if t.Kind() == reflect.Map {
		return &jsonschema.Schema{Type: "object", AdditionalProperties: &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string"}, {Type: "integer"}}}}
	}
	return nil
}

package config

import (
	"bytes"
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Marshal prints the configuration with its secrets and defaults. Equal configurations give the
// same bytes, and Parse of these bytes returns an equal configuration. Write the output only to a
// file that only its owner can read.
func Marshal(c *Config) []byte { return encode(c, printer{reveal: true}) }

// MarshalRedacted prints the configuration like Marshal, with every secret replaced by Redacted.
// Parse rejects the output, with a hint.
func MarshalRedacted(c *Config) []byte { return encode(c, printer{}) }

// MarshalOrigins prints the configuration like MarshalRedacted, with a comment at each value that
// is a default.
func MarshalOrigins(c *Config) []byte { return encode(c, printer{origin: c.Origin}) }

// printer converts values to YAML nodes.
type printer struct {
	reveal bool // print secrets
	digest bool // print a digest in place of a secret
	origin func(path string) Origin
}

func encode(c *Config, pr printer) []byte {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	for _, d := range c.documents() {
		doc := pr.structure(d.value, d.path)
		doc.Content = append([]*yaml.Node{scalar("apiVersion"), scalar(APIVersion), scalar("kind"), scalar(d.kind)}, doc.Content...)
		if err := enc.Encode(doc); err != nil {
			// This cannot happen: the nodes are valid, and a write to the buffer does not fail.
			panic(fmt.Sprintf("config: cannot print a %s document: %v", d.kind, err))
		}
	}
	if err := enc.Close(); err != nil {
		panic(fmt.Sprintf("config: cannot print the documents: %v", err))
	}
	return out.Bytes()
}

// structure prints a struct without its empty fields.
func (pr printer) structure(v reflect.Value, path string) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if options == "omitempty" && isEmpty(v.Field(i)) {
			continue
		}
		at := path + "." + name
		child := pr.value(v.Field(i), at)
		if child.Kind == yaml.MappingNode && len(child.Content) == 0 && f.Tag.Get("jsonschema") != "required" {
			continue
		}
		m.Content = append(m.Content, scalar(name), child)
	}
	return m
}

// value prints a value. path is its path, as in Problem.Field.
func (pr printer) value(v reflect.Value, path string) *yaml.Node {
	n := pr.node(v, path)
	if n.Kind == yaml.ScalarNode && pr.origin != nil && pr.origin(path).IsDefault() {
		n.LineComment = pr.origin(path).String()
	}
	return n
}

func (pr printer) node(v reflect.Value, path string) *yaml.Node {
	if text, ok := leaf(v); ok {
		switch s, secret := v.Interface().(interface{ Reveal() string }); {
		case secret && pr.reveal:
			text = s.Reveal()
		case secret && pr.digest && s.Reveal() != "":
			text = secretDigest(s.Reveal())
		}
		return scalar(text)
	}
	switch v.Kind() {
	case reflect.Pointer:
		return pr.node(v.Elem(), path)
	case reflect.Struct:
		return pr.structure(v, path)
	case reflect.Slice:
		list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for i := range v.Len() {
			list.Content = append(list.Content, pr.value(v.Index(i), fmt.Sprintf("%s[%d]", path, i)))
		}
		return list
	case reflect.Map:
		m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for _, key := range sortedKeys(v) {
			m.Content = append(m.Content, scalar(key), pr.value(v.MapIndex(reflect.ValueOf(key)), path+`["`+shorten(key)+`"]`))
		}
		return m
	case reflect.Bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v.Bool())}
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: fmt.Sprint(v.Interface())}
	}
}

// leaf returns the text of a value and true if the value is printed as a single text; otherwise it
// returns false. The text of a secret is Redacted.
func leaf(v reflect.Value) (string, bool) {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok && v.Kind() != reflect.Pointer {
		text, err := m.MarshalText()
		if err != nil {
			// This cannot happen: the methods of these types return no errors.
			panic(fmt.Sprintf("config: cannot print %s: %v", v.Type(), err))
		}
		return string(text), true
	}
	if v.Kind() == reflect.String {
		return v.String(), true
	}
	return "", false
}

// scalar returns a node for a text; a text with several lines becomes a literal block ("|").
func scalar(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if strings.Contains(text, "\n") {
		n.Style = yaml.LiteralStyle
	}
	return n
}

// isEmpty reports whether a value is an empty list or map, or the zero value of its type.
func isEmpty(v reflect.Value) bool {
	if z, ok := v.Interface().(interface{ IsZero() bool }); ok && v.Kind() != reflect.Pointer {
		return z.IsZero()
	}
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() == 0
	}
	return v.IsZero()
}

func sortedKeys(m reflect.Value) []string {
	var keys []string
	for _, key := range m.MapKeys() {
		keys = append(keys, key.String())
	}
	slices.Sort(keys)
	return keys
}

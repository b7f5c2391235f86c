package strictyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
)

// Decode decodes text, which has at most one document, into a value with JSON tags. A text without
// a document leaves the value unchanged. Names of fields are case-sensitive. Decode fails at a
// second document, a syntax error, a repeated or unknown field, an alias, and a value of the wrong
// type. The error contains no value of the text, because a value may be a secret.
func Decode(text []byte, into any) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return err
	}
	if err := decoder.Decode(&second); err == nil {
		return fmt.Errorf("line %d: a second document begins; expected one", second.Line)
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	content, err := valueOf(&document)
	if err != nil {
		return err
	}
	asJSON, err := json.Marshal(content)
	if err != nil {
		return err
	}
	unknown, err := kjson.UnmarshalStrict(asJSON, into)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return fmt.Errorf("field %q: is of the type %s, expected %s", wrong.Field, firstWord(wrong.Value), wrong.Type)
	}
	return errors.Join(append(unknown, err)...)
}

// firstWord returns the kind of a JSON value from json.UnmarshalTypeError.Value. It drops the rest
// of this text, which can be a number from the document, and so a secret.
func firstWord(value string) string {
	word, _, _ := strings.Cut(value, " ")
	return word
}

// valueOf returns the value of a node in the types that encoding/json can encode: map[string]any,
// []any or a scalar.
func valueOf(n *yaml.Node) (any, error) {
	switch n.Kind {
	case yaml.DocumentNode:
		return valueOf(n.Content[0])
	case yaml.AliasNode:
		return nil, fmt.Errorf("line %d: an alias (*) cannot be used; write the value, or quote it", n.Line)
	case yaml.MappingNode:
		if line := repeated(n); line > 0 {
			return nil, fmt.Errorf("line %d: a field occurs twice", line)
		}
		all := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Kind != yaml.ScalarNode || n.Content[i].Tag == "!!merge" {
				return nil, fmt.Errorf("line %d: expected the name of a field", n.Content[i].Line)
			}
			value, err := valueOf(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			all[n.Content[i].Value] = value
		}
		return all, nil
	case yaml.SequenceNode:
		all := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			value, err := valueOf(item)
			if err != nil {
				return nil, err
			}
			all = append(all, value)
		}
		return all, nil
	}
	if n.Tag == "!!timestamp" { // JSON has no timestamps, so the text becomes a string
		return n.Value, nil
	}
	var value any
	if err := n.Decode(&value); err != nil {
		return nil, fmt.Errorf("line %d: the value cannot be read", n.Line)
	}
	return value, nil
}

// Repeated returns the line of the first field in the tree below n that occurs twice in its
// mapping, or 0 if there is none. Callers reject such documents, because a YAML decoder may drop
// one of the two values.
func Repeated(n *yaml.Node) int {
	if n.Kind == yaml.MappingNode {
		if line := repeated(n); line > 0 {
			return line
		}
	}
	for _, child := range n.Content {
		if line := Repeated(child); line > 0 {
			return line
		}
	}
	return 0
}

// repeated returns the line of the first field that occurs twice in this mapping, or 0 if there is
// none. It does not examine the values of the fields.
func repeated(mapping *yaml.Node) int {
	seen := map[string]bool{}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key := mapping.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind == yaml.ScalarNode {
			if seen[key.Value] {
				return mapping.Content[i].Line
			}
			seen[key.Value] = true
		}
	}
	return 0
}

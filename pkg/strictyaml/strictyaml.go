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

// Decode decodes the only document of a text into a value with JSON tags. A text without a document
// leaves the value as it is. Names of fields are case-sensitive. No message contains a value of the
// text, which may be a secret.
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

// firstWord returns the kind of a JSON value: for a number, its text follows.
func firstWord(value string) string {
	word, _, _ := strings.Cut(value, " ")
	return word
}

// valueOf returns the value of a node for encoding/json.
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
	if n.Tag == "!!timestamp" { // JSON has none
		return n.Value, nil
	}
	var value any
	if err := n.Decode(&value); err != nil {
		return nil, fmt.Errorf("line %d: the value cannot be read", n.Line)
	}
	return value, nil
}

// Repeated returns the line of the first field below a node that occurs twice in its mapping, or 0.
// A decoder would drop the first value.
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

// repeated returns the line of the first field that occurs twice in a mapping, or 0.
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

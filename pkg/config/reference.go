package config

import (
	_ "embed" // for Reference
	"strings"

	"go.yaml.in/yaml/v3"
)

// Reference is the annotated reference: a file with every field of every document, with its unit,
// its default and the source of its rules. Its comments are the only descriptions of the fields:
// the schema has copies of the comments, and the structs of this package do not repeat them. The
// private keys in the reference are public; never use them.
//
//go:embed reference.yaml
var Reference string

// ReferenceComments returns the comment above each field of Reference, by the path of the field
// without list indices. The path of the comment of a whole document is its kind.
func ReferenceComments() map[string]string {
	found := map[string]string{}
	decoder := yaml.NewDecoder(strings.NewReader(Reference))
	for {
		n, err := nextDocument(decoder)
		if err != nil {
			// The error is io.EOF: a test parses the whole reference, so a syntax error is
			// impossible.
			return found
		}
		root := n.Content[0]
		if kind := lookup(root, "kind"); kind != nil {
			head := strings.TrimSpace(n.HeadComment + "\n" + root.HeadComment + "\n" + root.Content[0].HeadComment)
			if empty := strings.LastIndex(head, "\n#\n"); empty >= 0 {
				// The text before an empty comment line describes Reference itself.
				head = head[empty+len("\n#\n"):]
			}
			found[kind.Value] = head
			collectComments(root, kind.Value, found)
		}
	}
}

func collectComments(n *yaml.Node, path string, found map[string]string) {
	switch n.Kind {
	case yaml.SequenceNode:
		for _, item := range n.Content {
			collectComments(item, path, found)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, at := n.Content[i], path+"."+n.Content[i].Value
			if key.HeadComment != "" && found[at] == "" && key.Value != "apiVersion" {
				found[at] = key.HeadComment
			}
			collectComments(n.Content[i+1], at, found)
		}
	}
}

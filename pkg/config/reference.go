package config

import (
	_ "embed" // for Reference
	"strings"

	"go.yaml.in/yaml/v3"
)

// Reference is the annotated reference: a file with every field of every document, its unit, its
// default and the source of the rule. Its comments are the only texts about the fields: the schema
// contains them, and the structs of this package do not repeat them. Its keys are public; never use
// them.
//
//go:embed reference.yaml
var Reference string

// ReferenceComments returns the comment above each field of Reference, by path without list
// indices. The comment of a document has its kind as the path.
func ReferenceComments() map[string]string {
	found := map[string]string{}
	decoder := yaml.NewDecoder(strings.NewReader(Reference))
	for {
		n, err := nextDocument(decoder)
		if err != nil {
			// the end; a test parses the whole reference, so the error is not a syntax error
			return found
		}
		root := n.Content[0]
		if kind := lookup(root, "kind"); kind != nil {
			head := strings.TrimSpace(n.HeadComment + "\n" + root.HeadComment + "\n" + root.Content[0].HeadComment)
			if own := strings.LastIndex(head, "\n#\n"); own >= 0 {
				// the text before an empty line is about Reference itself
				head = head[own+len("\n#\n"):]
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

package config

import (
	_ "embed" // for Reference and Schema
	"strings"

	"go.yaml.in/yaml/v3"
)

// Reference is the annotated reference: one file with every field of every document, its unit, its default and where
// the rule comes from. Its keys are published; never use them.
//
//go:embed reference.yaml
var Reference string

// Schema is the JSON Schema of one document, for editors. It is made by the package schema below this one.
//
//go:embed schema.json
var Schema string

// referenceComments are the comments above each field of Reference, by path without list indices. The comment of a
// whole document stands under its kind.
func referenceComments() map[string]string {
	found := map[string]string{}
	decoder := yaml.NewDecoder(strings.NewReader(Reference))
	for {
		n, err := nextDocument(decoder)
		if err != nil {
			return found // the end; a test reads the whole reference, so that it cannot be an error
		}
		root := n.Content[0]
		if kind := lookup(root, "kind"); kind != nil {
			head := strings.TrimSpace(n.HeadComment + "\n" + root.HeadComment + "\n" + root.Content[0].HeadComment)
			if own := strings.LastIndex(head, "\n#\n"); own >= 0 {
				head = head[own+len("\n#\n"):] // what stands before an empty line is about Reference itself
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

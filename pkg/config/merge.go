package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Merge puts a patch into documents: a JSON merge patch (RFC 7396) for each kind, in YAML. A field
// of the patch takes the place of the one in the document, mappings are merged, null removes, lists
// are replaced as a whole, and a kind that is not there yet is added. Of add-ons it is the one of
// the same name that is changed; with spec: null the document itself is removed. What the patch
// does not speak of keeps its place, its spelling and its comments. The result is for Parse to
// judge.
func Merge(documents, patch []byte) ([]byte, error) {
	base, err := readDocuments(documents)
	if err != nil {
		return nil, fmt.Errorf("the present documents: %w", err)
	}
	changes, err := readDocuments(patch)
	known := new(Config).kindNames()
	ours := slices.ContainsFunc(changes, func(doc *yaml.Node) bool { return slices.Contains(known, kindOf(doc)) })
	if is := lookalike(patch); is != "" && !ours {
		return nil, fmt.Errorf("patch: it looks like %s; expected documents of Orlop OS, each with its kind (%s) and the fields to change; %s", is, oneOf(known), lookalikeHint(is))
	}
	if err != nil {
		return nil, fmt.Errorf("patch: %w", err)
	}
	if len(changes) == 0 {
		return nil, errors.New("patch: is empty; expected one document or more with the fields to change")
	}
	for _, change := range changes {
		name := kindOf(change)
		if name == "" {
			return nil, fmt.Errorf("patch: line %d: kind: missing; expected the kind of the document to change, such as kind: Machine", change.Line)
		}
		same := func(doc *yaml.Node) bool { return identity(doc) == identity(change) }
		switch {
		case name == kindAddon && removes(change):
			base = slices.DeleteFunc(base, same)
		case slices.ContainsFunc(base, same):
			for _, doc := range base {
				if same(doc) {
					mergeMapping(doc, change)
				}
			}
		default:
			base = append(base, change)
		}
	}
	return writeDocuments(base)
}

// Diff is the patch by which Merge makes after of before, without what both say. It is empty if
// they say the same. Documents other than add-ons cannot be removed by a patch: that is an error.
func Diff(before, after []byte) ([]byte, error) {
	was, err := readDocuments(before)
	if err != nil {
		return nil, err
	}
	is, err := readDocuments(after)
	if err != nil {
		return nil, err
	}
	byKind := map[string]*yaml.Node{}
	for _, doc := range is {
		name := identity(doc)
		if kindOf(doc) == "" || byKind[name] != nil {
			return nil, fmt.Errorf("line %d: expected documents of different kinds, each with its kind", doc.Line)
		}
		byKind[name] = doc
	}
	var patch []*yaml.Node
	for _, doc := range was {
		name := identity(doc)
		next := byKind[name]
		if next == nil && kindOf(doc) == kindAddon {
			patch = append(patch, addonPatch(documentName(doc), scalar("spec"), null()))
			continue
		}
		if next == nil {
			return nil, fmt.Errorf("the document %s is gone; a document cannot be removed by a patch", name)
		}
		delete(byKind, name)
		d := diffMapping(doc, next)
		switch {
		case len(d.Content) == 0:
		case kindOf(doc) == kindAddon:
			patch = append(patch, addonPatch(documentName(doc), d.Content...))
		default:
			d.Content = append([]*yaml.Node{scalar("kind"), scalar(name)}, d.Content...)
			patch = append(patch, d)
		}
	}
	for _, doc := range is {
		if byKind[identity(doc)] == doc { // a new one
			patch = append(patch, doc)
		}
	}
	if len(patch) == 0 {
		return nil, nil
	}
	return writeDocuments(patch)
}

// readDocuments reads the mappings of a file; empty documents are left out.
func readDocuments(text []byte) ([]*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var all []*yaml.Node
	for {
		doc, err := nextDocument(dec)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			line, reason := syntaxError(err)
			return nil, fmt.Errorf("line %d: cannot be read as YAML: %s", line, reason)
		}
		top := doc.Content[0]
		if top.Tag == "!!null" {
			continue // nothing between two ---, or comments only
		}
		if top.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("line %d: expected a document with fields", top.Line)
		}
		if err := plain(top, 0); err != nil {
			return nil, err
		}
		all = append(all, top)
	}
}

// plain refuses what could make a small text a large one, or has two meanings.
func plain(n *yaml.Node, depth int) error {
	switch {
	case depth > MaxDepth:
		return fmt.Errorf("line %d: more than %d levels", n.Line, MaxDepth)
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return fmt.Errorf("line %d: anchors and aliases cannot be used; write the value out", n.Line)
	}
	seen := map[string]bool{}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if child.Kind != yaml.ScalarNode || seen[child.Value] {
				return fmt.Errorf("line %d: expected names of fields, each once", child.Line)
			}
			seen[child.Value] = true
		}
		if err := plain(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func writeDocuments(all []*yaml.Node) (text []byte, err error) {
	defer func() {
		if r := recover(); r != nil { // as in nextDocument
			text, err = nil, fmt.Errorf("cannot be written as YAML: %v", r)
		}
	}()
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	for _, doc := range all {
		if err := enc.Encode(doc); err != nil {
			return nil, fmt.Errorf("cannot be written as YAML: %w", err)
		}
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("cannot be written as YAML: %w", err)
	}
	return out.Bytes(), nil
}

func kindOf(doc *yaml.Node) string {
	if at := fieldAt(doc, "kind"); at >= 0 {
		return doc.Content[at+1].Value
	}
	return ""
}

// identity is what a document is known by: its kind, and an add-on's name.
func identity(doc *yaml.Node) string {
	if kind := kindOf(doc); kind != kindAddon {
		return kind
	}
	return addonPath(documentName(doc))
}

// removes says that a patch of an add-on takes the document away.
func removes(patch *yaml.Node) bool {
	at := fieldAt(patch, "spec")
	return at >= 0 && patch.Content[at+1].Tag == "!!null"
}

// addonPatch is the patch of the add-on of that name. Its metadata hold nothing else that could
// change.
func addonPatch(name string, fields ...*yaml.Node) *yaml.Node {
	metadata := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{scalar("name"), scalar(name)}}
	head := []*yaml.Node{scalar("kind"), scalar(kindAddon), scalar("metadata"), metadata}
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: append(head, fields...)}
}

func null() *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"} }

// fieldAt is where the name of a field stands in a mapping, -1 if it does not.
func fieldAt(m *yaml.Node, name string) int {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == name {
			return i
		}
	}
	return -1
}

func mergeMapping(into, patch *yaml.Node) {
	for i := 0; i+1 < len(patch.Content); i += 2 {
		key, value := patch.Content[i], patch.Content[i+1]
		at := fieldAt(into, key.Value)
		switch {
		case value.Tag == "!!null":
			if at >= 0 {
				into.Content = append(into.Content[:at:at], into.Content[at+2:]...)
			}
		case at < 0:
			into.Content = append(into.Content, key, withoutNulls(value))
		case value.Kind == yaml.MappingNode && into.Content[at+1].Kind == yaml.MappingNode:
			mergeMapping(into.Content[at+1], value)
		default:
			into.Content[at+1] = withoutNulls(value)
		}
	}
	into.Style &^= yaml.FlowStyle // what was added may not fit on its line
}

// withoutNulls is a value that comes where none was: what a patch removes is not there (RFC 7396,
// section 2).
func withoutNulls(v *yaml.Node) *yaml.Node {
	if v.Kind != yaml.MappingNode {
		return v
	}
	out := *v
	out.Content = nil
	for i := 0; i+1 < len(v.Content); i += 2 {
		if v.Content[i+1].Tag != "!!null" {
			out.Content = append(out.Content, v.Content[i], withoutNulls(v.Content[i+1]))
		}
	}
	return &out
}

// diffMapping is the merge patch between two mappings.
func diffMapping(was, is *yaml.Node) *yaml.Node {
	patch := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for i := 0; i+1 < len(was.Content); i += 2 {
		name := was.Content[i].Value
		at := fieldAt(is, name)
		if at < 0 {
			patch.Content = append(patch.Content, scalar(name), null())
			continue
		}
		a, b := was.Content[i+1], is.Content[at+1]
		switch {
		case same(a, b):
		case a.Kind == yaml.MappingNode && b.Kind == yaml.MappingNode:
			patch.Content = append(patch.Content, scalar(name), diffMapping(a, b))
		default:
			patch.Content = append(patch.Content, scalar(name), b)
		}
	}
	for i := 0; i+1 < len(is.Content); i += 2 {
		if fieldAt(was, is.Content[i].Value) < 0 {
			patch.Content = append(patch.Content, is.Content[i], is.Content[i+1])
		}
	}
	return patch
}

// same tells whether two values say the same, however they are written. The order of fields does
// not count.
func same(a, b *yaml.Node) bool {
	if a.Kind != b.Kind || len(a.Content) != len(b.Content) {
		return false
	}
	switch a.Kind {
	case yaml.ScalarNode:
		return a.Tag == b.Tag && a.Value == b.Value
	case yaml.MappingNode:
		for i := 0; i+1 < len(a.Content); i += 2 {
			at := fieldAt(b, a.Content[i].Value)
			if at < 0 || !same(a.Content[i+1], b.Content[at+1]) {
				return false
			}
		}
		return true
	}
	for i := range a.Content {
		if !same(a.Content[i], b.Content[i]) {
			return false
		}
	}
	return true
}

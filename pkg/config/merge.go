package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Merge applies a patch to documents. The patch is a stream of YAML documents. Each is a JSON merge
// patch (RFC 7396) for the document of the same kind: a field of the patch replaces the field of
// the document, mappings are merged, lists are replaced as a whole, and null removes a field. A
// document of a new kind is added. Volume and Addon documents are matched by name; spec: null
// removes such a document. All other parts of the documents keep their position, notation and
// comments. The result is not validated; Parse does that.
func Merge(documents, patch []byte) ([]byte, error) {
	base, err := readDocuments(documents)
	if err != nil {
		return nil, fmt.Errorf("current documents: %w", err)
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
		case isNamed(name) && removesDocument(change):
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

// Diff returns the smallest patch with which Merge converts before to after. The patch is empty if
// both are equal. Diff fails if after lacks a document of before, because a patch cannot remove
// documents. It can remove only volumes and add-ons.
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
		if next == nil && isNamed(kindOf(doc)) {
			patch = append(patch, namedPatch(doc, scalar("spec"), null()))
			continue
		}
		if next == nil {
			return nil, fmt.Errorf("the document %s is missing; a patch cannot remove a document", name)
		}
		delete(byKind, name)
		d := diffMapping(doc, next)
		switch {
		case len(d.Content) == 0:
		case isNamed(kindOf(doc)):
			patch = append(patch, namedPatch(doc, d.Content...))
		default:
			d.Content = append([]*yaml.Node{scalar("kind"), scalar(name)}, d.Content...)
			patch = append(patch, d)
		}
	}
	for _, doc := range is {
		if byKind[identity(doc)] == doc { // a new document
			patch = append(patch, doc)
		}
	}
	if len(patch) == 0 {
		return nil, nil
	}
	return writeDocuments(patch)
}

// readDocuments returns the mappings of a file; it omits empty documents.
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
			continue // empty or only comments between two ---
		}
		if top.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("line %d: expected a document with fields", top.Line)
		}
		if err := checkPlain(top, 0); err != nil {
			return nil, err
		}
		all = append(all, top)
	}
}

// checkPlain rejects YAML constructs that can expand a small text to a large one, or that are
// ambiguous.
func checkPlain(n *yaml.Node, depth int) error {
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
		if err := checkPlain(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func writeDocuments(all []*yaml.Node) (text []byte, err error) {
	defer func() {
		if r := recover(); r != nil { // a panic of the YAML library, as in nextDocument
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

// identity returns a text that identifies a document: for a volume or an add-on, its path with kind
// and name; for any other document, its kind.
func identity(doc *yaml.Node) string {
	kind := kindOf(doc)
	if !isNamed(kind) {
		return kind
	}
	return documentPath(kind, documentName(doc))
}

// removesDocument reports whether the patch of a volume or an add-on removes the document.
func removesDocument(patch *yaml.Node) bool {
	at := fieldAt(patch, "spec")
	return at >= 0 && patch.Content[at+1].Tag == "!!null"
}

// namedPatch returns a patch for a volume or an add-on. The metadata contain only the name.
func namedPatch(doc *yaml.Node, fields ...*yaml.Node) *yaml.Node {
	metadata := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{scalar("name"), scalar(documentName(doc))}}
	head := []*yaml.Node{scalar("kind"), scalar(kindOf(doc)), scalar("metadata"), metadata}
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: append(head, fields...)}
}

func null() *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"} }

// fieldAt returns the index of a field's name in a mapping, or -1.
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
	into.Style &^= yaml.FlowStyle // added values may not fit on the line
}

// withoutNulls returns a copy of a value without its null fields. A patch adds values in this form
// (RFC 7396, section 2).
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

// diffMapping returns the merge patch between two mappings.
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

// same reports whether two values are equal, independent of their notation and of the order of
// fields.
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
